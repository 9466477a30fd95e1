"""Sessions bound to devices by class, event by event."""

import pytest

from gateway.core import events as ev
from gateway.domain.ids import ReplicaId, RequestId, TenantId
from gateway.domain.request import ExplicitId, Protocol, RequestFacts, Work
from lab.simulator.baselines.class_bound import ClassBoundRouter
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from tests.lab.simulator.baselines.router_play import Play


class BoundPlay(Play):
    """Background sessions run on r2 and r3."""

    def __init__(self):
        slow = (ReplicaId("r2"), ReplicaId("r3"))
        super().__init__(None, replicas=4, kind=lambda sizes: ClassBoundRouter(sizes, slow))

    def background(self, name, *, final=False):
        facts = RequestFacts(
            protocol=Protocol.CHAT,
            work=Work.GENERATE,
            body_bytes=400,
            is_background=True,
            explicit=ExplicitId(schema="x", session=name.split("/")[0], thread="0", final=final),
        )
        return self.hears(ev.RequestArrived(RequestId(name), TenantId("t"), facts))


def test_each_class_spreads_over_its_own_replicas_and_sessions_stay():
    play = BoundPlay()
    assert play.background("b1/0") == ["b1/0 on r2"]
    assert play.asks("a1/0") == ["a1/0 on r0"]
    assert play.background("b2/0") == ["b2/0 on r3"]
    assert play.asks("a2/0") == ["a2/0 on r1"]
    assert play.background("b3/0") == ["b3/0 on r2"]
    play.ends("b2/0")
    assert play.background("b2/1") == ["b2/1 on r3"]


def test_replicas_that_are_not_there_are_refused():
    [spec] = parse_policies("class-bound:background=4")
    fleet = FleetSpec(replicas=(ReplicaGroup(profile="qwen3-14b@h200", count=2),))
    with pytest.raises(SimulatorError, match="joined by dots"):
        spec.variants[0].plan(fleet)
