"""Agent.xpu's policy: who has a leg, what engines are told, and who shares a step."""

import json

import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch, PrefillLeg
from gateway.domain.fleet import ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId, RequestId, TenantId
from gateway.domain.request import ExplicitId, Protocol, RequestFacts, Work
from lab.simulator.baselines.agent_xpu import AgentXpuRouter

NPU, IGPU = ReplicaId("npu"), ReplicaId("igpu")


@pytest.fixture
def router() -> AgentXpuRouter:
    router = AgentXpuRouter({"npu": 1_000, "igpu": 1_000}, {NPU})
    for name in (NPU, IGPU):
        assert router.handle(ev.ReplicaCameUp(ReplicaFacts(id=name, pool=PoolId("sim"))), now=0.0) == []
    return router


def asks(name: str, *, is_background: bool) -> ev.RequestArrived:
    facts = RequestFacts(
        protocol=Protocol.CHAT,
        work=Work.GENERATE,
        body_bytes=4_000,
        explicit=ExplicitId(schema="x", session=name, thread="0", final=True),
        is_background=is_background,
    )
    return ev.RequestArrived(RequestId(name), TenantId("t"), facts)


def told(command: object) -> dict[str, object]:
    assert isinstance(command, Dispatch)
    assert command.hint is not None
    hint: dict[str, object] = json.loads(command.hint)
    return hint


def test_background_prompts_are_computed_apart_and_reactive_ones_where_they_are_decoded(router):
    (leg,) = router.handle(asks("b", is_background=True), now=0.0)
    assert isinstance(leg, PrefillLeg)
    assert leg.replica == NPU
    (reactive,) = router.handle(asks("r", is_background=False), now=1.0)
    assert reactive.placement.replica == IGPU
    assert told(reactive)["class"] == "reactive"
    (background,) = router.handle(ev.PrefillLegEnded(RequestId("b"), None), now=3.0)
    assert background.placement.replica == IGPU
    assert told(background)["class"] == "proactive"
    assert told(background)["age_s"] == 3.0
