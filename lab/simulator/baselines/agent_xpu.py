"""Agent.xpu: background prompts on one device and all decoding on another, what somebody waits for first.

Source: Agent.xpu (arXiv 2506.24045), §4.3 (prefill and decode apart; reactive prompts also where decodes),
§4.4 (dual queues; preemption at chunk and iteration boundaries), §4.5 (piggybacking, ageing).

Symbols: NPU → the replicas that compute prompts; iGPU → those that decode; *B_rf* → `_ROWS`; *threshold
age* → `age_s`, which the paper does not print.

Deviations: a step is one chunk of a prompt through all layers, or one token of each request, where the paper
preempts between the kernels of a layer. A reactive prompt is computed where it decodes, and not in parts on
both devices. Devices share no bandwidth, so nothing is deferred for it; an aged prompt gets no other device,
as it has its own. Where no replica is for prompts, background prompts run beside reactive decoding, in whole
chunks.

Invariants: those of `SplitRouter`; a reactive prompt has no leg; in a step that is shared no more than
`_ROWS` requests decode but for those that somebody waits for or that have aged.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.core import events as ev
from gateway.core.commands import Dispatch
from gateway.domain.ids import ReplicaId, RequestId
from gateway.workflow.engine_hints import Hints
from gateway.workflow.retention import RetentionDecision
from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.roles import PREFILL_REPLICAS, roles_of, with_roles
from lab.simulator.baselines.router import Turn
from lab.simulator.baselines.split import SplitRouter
from lab.simulator.fleet import FleetSpec

_ROWS: Final = 3
_NEVER_S: Final = 1e9
_NOTHING_KEPT: Final = RetentionDecision(reuse=0.0, retain_s=0.0, returns_in_s=None)
_EVERY: Final = 0
"""Tokens of a prompt above which it has a leg; what somebody waits for counts as having none."""


class AgentXpuRouter(SplitRouter):
    def __init__(self, kv_tokens: Mapping[str, int], for_prompts: Collection[ReplicaId]) -> None:
        super().__init__(kv_tokens, for_prompts, _EVERY)
        self._hints = Hints()
        self._background: set[RequestId] = set()

    def _arrived(self, event: ev.RequestArrived, *, now: float) -> None:
        super()._arrived(event, now=now)
        if event.facts.is_background:
            self._background.add(event.request)
        else:
            self._new_tokens[event.request] = _EVERY

    def _dispatch(self, turn: Turn, *, now: float) -> Dispatch:
        command = super()._dispatch(turn, now=now)
        assert command.session is not None
        is_background = turn.request in self._background
        self._background.discard(turn.request)
        hint = self._hints.write(
            command.session.session,
            command.session.thread,
            _NOTHING_KEPT,
            age_s=now - turn.member.arrived_s,
            is_final=turn.is_final,
            service_class="proactive" if is_background else "reactive",
        )
        return msgspec.structs.replace(command, hint=hint)


def _three_rows(own: Any) -> Any:
    """The plugin's piggybacking, by the paper's rule."""
    from turnpike_vllm.classes import (  # noqa: PLC0415 - an extra, as the plugin is
        NO_BOUND,
        BackgroundRequest,
        Piggyback,
        StepShare,
    )

    class ThreeRows(Piggyback):
        def _beside(
            self, rows: Sequence[BackgroundRequest], decoding: int, context: int, prefill: int
        ) -> StepShare:
            ranked = sorted(rows, key=lambda each: (each.context, each.admitted))
            decode = [each for each in ranked if not each.is_prefill and not each.is_aged]
            left_out = frozenset(each.key for each in decode[max(0, _ROWS - decoding) :])
            return StepShare(left_out, 0 if prefill else NO_BOUND, self.config.least_tokens)

    return ThreeRows(own.config, own.pace)


def _agent_xpu(plan: Plan, values: Values) -> Plan:
    fleet = with_roles(plan.fleet, str(values["prefill"]))
    for_prompts = roles_of(fleet, "prefill")
    kv_tokens = msgspec.structs.replace(plan, fleet=fleet).kv_tokens(fleet)
    settings = {
        "coordinator": {"max_wait_s": _NEVER_S, "headroom": 0.0},
        "classes": {"age_s": values["age_s"]},
        "connectors": ["HandOver"],
        "retention": False,
    }
    plan = msgspec.structs.replace(plan.with_plugin(settings), fleet=fleet)
    options = msgspec.structs.replace(plan.options, piggyback=_three_rows)

    def brain(fleet: FleetSpec) -> AgentXpuRouter:
        return AgentXpuRouter(kv_tokens, for_prompts)

    return msgspec.structs.replace(plan, options=options).with_brain(brain)


AGENT_XPU = Recipe(
    name="agent-xpu",
    summary="background prompts on devices of their own; reactive work first",
    source="arXiv 2506.24045",
    apply=_agent_xpu,
    knobs=(
        PREFILL_REPLICAS,
        Knob(
            name="age_s",
            default=60.0,
            sweep=(60.0,),
            meaning="background work that got nothing for so long is left out no more",
        ),
    ),
)
