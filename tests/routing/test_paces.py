"""What usual turns take where, as far as replicas differ."""

import pytest

from gateway.domain.ids import ReplicaId
from gateway.routing.paces import Paces

A, B, C = map(ReplicaId, "abc")


class Oracle:
    """A new token takes a millisecond, times its replica's pace."""

    def __init__(self, **paces):
        self.paces = paces

    def completion_s(self, replica, work, *, now):
        raise NotImplementedError

    def isolated_task_s(self, replica, turns, gaps_s=()):
        return sum(1e-3 * turn.new_tokens for turn in turns) * self.paces.get(replica, 1.0)


def test_what_differs_by_little_is_alike():
    paces = Paces(Oracle(a=0.8, c=1.25))
    paces.compare([C, A, B])
    assert paces.usual_turn_s(A) == paces.usual_turn_s(B) == paces.usual_turn_s(C) == pytest.approx(2.0)
    assert paces.prefill_s(A, 500) == paces.prefill_s(C, 500) == pytest.approx(0.5)


def test_what_differs_by_more_differs_by_what_that_is_more():
    paces = Paces(Oracle(a=0.5, c=2.6))
    paces.compare([A, B, C])
    assert paces.usual_turn_s(A) == pytest.approx(2.0 * 0.65) and paces.prefill_s(A, 500) == pytest.approx(
        0.325
    )
    assert paces.usual_turn_s(C) == pytest.approx(2.0 * 2.0) and paces.prefill_s(C, 500) == pytest.approx(1.0)


def test_they_are_compared_anew_now_and_then():
    oracle = Oracle(a=1.0, b=1.0)
    paces = Paces(oracle)
    paces.compare([A, B])
    assert paces.usual_turn_s(A) == paces.usual_turn_s(B)
    oracle.paces[A] = 0.1
    paces.compare([A, B])
    assert paces.usual_turn_s(A) == paces.usual_turn_s(B)
    for _ in range(64):
        paces.compare([A, B])
    assert paces.usual_turn_s(A) == pytest.approx(0.13 * paces.usual_turn_s(B))


def test_if_the_one_in_the_middle_leaves_they_are_compared_anew():
    paces = Paces(Oracle(a=1.0, b=2.0, c=4.0))
    paces.compare([A, B, C])
    assert paces.usual_turn_s(A) == pytest.approx(4.0 * 0.65)
    paces.replica_left(B)
    paces.compare([A, C])
    assert paces.usual_turn_s(C) == pytest.approx(8.0) and paces.usual_turn_s(A) == pytest.approx(8.0 * 0.325)


def test_whom_nobody_compared_is_alike():
    paces = Paces(Oracle(a=9.0))
    assert paces.usual_turn_s(A) == pytest.approx(18.0)


def test_what_is_usual_is_learned():
    paces = Paces(Oracle())
    for _ in range(200):
        paces.seen(context_tokens=5_000.0, new_tokens=400.0)
    paces.seen(context_tokens=5_000.0, new_tokens=None)
    assert paces.context_tokens == pytest.approx(5_000.0, rel=0.01)
    assert paces.usual_turn_s(A) == pytest.approx(0.4, rel=0.02)
