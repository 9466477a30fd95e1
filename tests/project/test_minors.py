"""Which releases of vLLM `make minors` takes."""

import pytest

from tools.minors import last_minors


@pytest.mark.parametrize(
    ("released", "taken"),
    [
        (["0.33.0", "0.32.1", "0.32.0", "0.31.0"], ["0.33.0", "0.32.1"]),
        (["1.0.2", "0.33.0"], ["1.0.2", "0.33.0"]),
        (["0.33.0"], ["0.33.0"]),
    ],
)
def test_the_newest_release_of_each_of_the_last_minors(released: list[str], taken: list[str]) -> None:
    assert last_minors(released, 2) == taken
