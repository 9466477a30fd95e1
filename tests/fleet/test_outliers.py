"""Which replica's turns are late, where those of the others are not."""

import pytest

from gateway.domain.ids import ReplicaId
from gateway.fleet.outliers import OutlierDetection, Phase

A, B, C = map(ReplicaId, "abc")


def came(found, replica, lateness, others=(A, B, C), phase=Phase.END, *, is_over=True, now=0.0):
    others = [each for each in others if each != replica]
    return found.saw(replica, phase, lateness, others, is_over=is_over, now=now)


def late(**turns: list[float]) -> OutlierDetection:
    """Turns of each replica, as late as that, in turns."""
    found = OutlierDetection(lasts_s=5.0)
    for number in range(max(map(len, turns.values()))):
        for name, each in turns.items():
            if number < len(each):
                came(found, ReplicaId(name), each[number])
    return found


@pytest.mark.parametrize(
    ("turns", "is_late"),
    [
        ([4.0], False),
        ([4.0, 4.0], True),
        ([4.0, 0.3, 4.0], False),
        ([4.0, 4.0, 0.3, 4.0], True),
        ([2.0] * 9, False),  # far later, but not so far that a busy replica never is
        ([0.9] * 9, False),  # in time, whatever the others do
        ([4.0, 4.0, 4.0, 0.3], False),  # it was
    ],
)
def test_two_in_a_row_are_late(turns, is_late):
    found = late(b=[0.45] * 9, c=[0.5] * 9)
    for each in turns:
        came(found, A, each)
    assert found.slower(A) == (pytest.approx(4.0 / 0.5, rel=0.15) if is_late else 1.0)
    assert found.slower(B) == found.slower(C) == 1.0


def test_one_that_was_late_seems_slower_until_the_next_is_in_time():
    found = late(b=[0.45] * 9, c=[0.5] * 9)
    came(found, A, 4.0)
    assert found.slower(A) == 1.0 and found.seems_slower(A) == pytest.approx(4.0 / 0.5, rel=0.15)
    assert found.seems_slower(B) == 1.0
    came(found, A, 0.3, phase=Phase.START)
    assert found.seems_slower(A) > 1.0, "another phase"
    came(found, A, 0.3, is_over=False)
    assert found.seems_slower(A) > 1.0, "it is not over"
    came(found, A, 0.3)
    assert found.seems_slower(A) == 1.0 and found.is_empty


@pytest.mark.parametrize(("times", "in_time"), [(1, 1), (2, 2), (4, 3)])
def test_the_more_often_it_was_late_the_longer_it_seems_slower(times, in_time):
    found = late(b=[0.3] * 9, c=[0.3] * 9, a=[4.0] * times)
    for number in range(in_time):
        assert found.seems_slower(A) > 1.0, f"{number} in time"
        came(found, A, 0.3)
    assert found.seems_slower(A) == 1.0 and found.is_empty


def test_who_is_slower_seems_so():
    found = late(b=[0.3] * 9, c=[0.3] * 9, a=[4.0] * 8)
    came(found, A, 0.3)
    assert found.slower(A) == found.seems_slower(A) > 4.0, "one in time is no proof that it is over"


def test_alone_nobody_is_late():
    found = OutlierDetection(lasts_s=5.0)
    for _ in range(9):
        came(found, A, 50.0, [])
    assert found.is_empty and found.usual(Phase.END, []) == 0.0


def test_first_tokens_in_time_do_not_excuse_late_ends():
    found = late(b=[0.3] * 9, c=[0.3] * 9)
    for _ in range(3):
        came(found, A, 0.3, phase=Phase.START)
        came(found, A, 4.0, phase=Phase.END)
    assert found.slower(A) > 4.0
    came(found, A, 0.3, phase=Phase.START)
    assert found.slower(A) > 4.0
    came(found, A, 0.3, phase=Phase.END)
    assert found.slower(A) == 1.0


def test_what_is_awaited_still_says_nothing_of_being_in_time():
    found = late(b=[0.3] * 9, c=[0.3] * 9, a=[4.0])
    assert not came(found, A, 1.4, is_over=False)
    assert came(found, A, 4.0, is_over=False)
    assert found.slower(A) > 1.0, "the second in a row"
    assert not came(found, A, 1.4) and found.slower(A) == 1.0, "its end was in time"
