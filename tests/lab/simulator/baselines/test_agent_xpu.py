"""Agent.xpu's policy: who has a leg, what engines are told, and who shares a step."""

import json

from gateway.core import events as ev
from gateway.core.commands import Dispatch, PrefillLeg
from gateway.domain.ids import ReplicaId, RequestId
from lab.simulator.baselines.agent_xpu import AgentXpuRouter
from tests.lab.simulator.baselines.router_play import Play, asked

NPU, IGPU = ReplicaId("r0"), ReplicaId("r1")


def told(command: object) -> dict[str, object]:
    assert isinstance(command, Dispatch) and command.placement.replica == IGPU
    assert command.hint is not None
    hint: dict[str, object] = json.loads(command.hint)
    return hint


def test_background_prompts_are_computed_apart_and_reactive_ones_where_they_are_decoded():
    router = Play(None, replicas=2, kind=lambda sizes: AgentXpuRouter(sizes, {NPU})).router
    (leg,) = router.handle(asked("b", 1_000, final=True, is_background=True), now=0.0)
    assert isinstance(leg, PrefillLeg)
    assert leg.replica == NPU
    (reactive,) = router.handle(asked("r", 1_000, final=True), now=1.0)
    assert told(reactive)["class"] == "reactive"
    (background,) = router.handle(ev.PrefillLegEnded(RequestId("b"), None), now=3.0)
    assert told(background)["class"] == "proactive"
    assert told(background)["age_s"] == 3.0
