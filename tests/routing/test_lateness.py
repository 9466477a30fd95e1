"""Which replica's turns are late, where those of the others are not."""

import pytest

from gateway.domain.ids import ReplicaId
from gateway.routing.lateness import Lateness

A, B, C = map(ReplicaId, "abc")


def late(**turns: list[float]) -> Lateness:
    """Turns of each replica, as late as that, in turns."""
    found = Lateness(lasts_s=5.0)
    for number in range(max(map(len, turns.values()))):
        for name, each in turns.items():
            if number < len(each):
                found.saw(ReplicaId(name), each[number], [x for x in (A, B, C) if x != name], now=0.0)
    return found


@pytest.mark.parametrize(
    ("turns", "is_late"),
    [
        ([4.0, 4.0], False),
        ([4.0, 4.0, 4.0], True),
        ([4.0, 4.0, 0.3, 4.0], False),
        ([2.0] * 9, False),  # far later, but not so far that a busy replica never is
        ([0.9] * 9, False),  # in time, whatever the others do
        ([4.0, 4.0, 4.0, 0.3], False),  # it was
    ],
)
def test_three_in_a_row_are_late(turns, is_late):
    found = late(b=[0.45] * 9, c=[0.5] * 9)
    for each in turns:
        found.saw(A, each, [B, C], now=0.0)
    assert found.is_even is not is_late
    assert found.slower(A) == (pytest.approx(4.0 / 0.5, rel=0.15) if is_late else 1.0)
    assert found.slower(B) == found.slower(C) == 1.0


def test_where_all_are_late_it_is_nobodys_fault():
    assert late(a=[6.0] * 9, b=[6.0] * 9, c=[6.0] * 9).is_even


def test_alone_nobody_is_late():
    found = Lateness(lasts_s=5.0)
    for _ in range(9):
        found.saw(A, 50.0, [], now=0.0)
    assert found.is_even and found.usual([]) == 0.0


def test_it_counts_for_a_while():
    found = late(b=[0.3] * 9, c=[0.3] * 9, a=[4.0] * 3)
    assert found.next_due_s == 5.0
    found.saw(A, 4.0, [B, C], now=3.0)
    found.pass_time(now=7.9)
    assert not found.is_even
    found.pass_time(now=8.0)
    assert found.is_even and found.next_due_s == float("inf")


def test_who_left_is_forgotten():
    found = late(b=[0.3] * 9, c=[0.3] * 9, a=[4.0] * 3)
    found.forget(A)
    assert found.is_even and A not in found._seen
