"""What was made is given again until it is too old."""

from collections.abc import Iterator
from itertools import count

import pytest

from gateway.telemetry.reused import Reused


def test_it_is_made_anew_when_it_is_too_old():
    number = count(1)
    reused = Reused(lambda: b"%d" % next(number), max_age_s=0.25)
    assert [reused.get(now=now) for now in (5.0, 5.0, 5.2, 5.25, 5.4, 60.0)] == [
        b"1", b"1", b"1", b"2", b"2", b"3",
    ]  # fmt: skip


def test_without_an_age_it_is_always_made_anew():
    number = count(1)
    reused = Reused(lambda: b"%d" % next(number), max_age_s=0.0)
    assert [reused.get(now=5.0) for _ in range(3)] == [b"1", b"2", b"3"]


def test_what_could_not_be_made_is_tried_again():
    answers: Iterator[bytes | ValueError] = iter([ValueError("no"), b"made"])

    def make() -> bytes:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    reused = Reused(make, max_age_s=1.0)
    with pytest.raises(ValueError, match="no"):
        reused.get(now=0.0)
    assert reused.get(now=0.0) == b"made"
