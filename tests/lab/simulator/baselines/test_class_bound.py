"""Sessions bound to devices by class, event by event."""

import pytest

from gateway.domain.ids import ReplicaId
from lab.simulator.baselines.class_bound import ClassBoundRouter
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from tests.lab.simulator.baselines.router_play import Play


def test_each_class_spreads_over_its_own_replicas_and_sessions_stay():
    slow = (ReplicaId("r2"), ReplicaId("r3"))
    play = Play(None, replicas=4, kind=lambda sizes: ClassBoundRouter(sizes, slow))
    assert play.asks("b1/0", is_background=True) == ["b1/0 on r2"]
    assert play.asks("a1/0") == ["a1/0 on r0"]
    assert play.asks("b2/0", is_background=True) == ["b2/0 on r3"]
    assert play.asks("a2/0") == ["a2/0 on r1"]
    assert play.asks("b3/0", is_background=True) == ["b3/0 on r2"]
    play.ends("b2/0")
    assert play.asks("b2/1", is_background=True) == ["b2/1 on r3"]


def test_replicas_that_are_not_there_are_refused():
    [spec] = parse_policies("class-bound:background=4")
    fleet = FleetSpec(replicas=(ReplicaGroup(profile="qwen3-14b@h200", count=2),))
    with pytest.raises(SimulatorError, match="joined by dots"):
        spec.variants[0].plan(fleet)
