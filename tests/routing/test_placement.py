"""Placement by load."""

from gateway.domain.decision import PlacementReason
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId
from gateway.routing.placement import LeastLoaded


def loads(**running: int) -> list[ReplicaLoad]:
    return [ReplicaLoad(ReplicaId(name), load) for name, load in running.items()]


def test_the_least_loaded_is_chosen():
    placement = LeastLoaded().place(loads(a=3, b=1, c=2))
    assert placement.replica == "b" and placement.reason is PlacementReason.LEAST_LOADED


def test_equals_take_turns():
    policy = LeastLoaded()
    chosen = [policy.place(loads(a=0, b=0, c=0)).replica for _ in range(6)]
    assert chosen == ["a", "b", "c", "a", "b", "c"]
