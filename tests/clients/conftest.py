from collections.abc import Iterator

import pytest

from tests.clients.site import Site, opened
from tests.engines import Fleet


@pytest.fixture(scope="module")
def site(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One gateway for the tests of a module; they make its faults, and leave it without."""
    with opened(fleet, tmp_path_factory.mktemp("clients") / "gateway") as found:
        yield found
