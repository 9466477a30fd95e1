"""Mixes that papers measured with, as far as they tell: who comes how often, with what kind of session.

Each is made of made-up agents (`agent_kinds`), or of recorded sessions where some are given.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from lab.workload.sessions import rng_of
from lab.workload.trace.agent_kinds import BACKGROUND, CHAT, CODING, ORCHESTRATOR, SEARCH
from lab.workload.trace.agents import session_of
from lab.workload.trace.composition import Flow
from lab.workload.trace.format import ServiceClass, Session
from lab.workload.trace.populations import MadeUp, Population, Recorded, Tilted
from lab.workload.trace.spread import Spread

Flows = Callable[[Sequence[Session] | None, int], list[Flow]]
"""Of the recorded sessions, if any, and the seed."""


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    flows: Flows
    per_hour: float
    """Sessions, as in the paper and for its fleet."""
    told: str
    """The source, what it says, and what is ours."""


# SAGA (Workflow-Atomic Scheduling for AI Agent Inference on GPU Clusters, arXiv 2605.00528) §9.1.
_SAGA: Final = (
    # name, tenants, sessions a minute of each, turns
    ("heavy", 3, 16, 100),
    ("medium", 4, 8, 30),
    ("light", 3, 4, 10),
)


def _saga(sessions: Sequence[Session] | None, seed: int) -> list[Flow]:
    """Of recorded sessions, the third with the most turns is heavy, the one with the fewest light."""
    ranked = sorted(sessions or (), key=lambda session: session.turns, reverse=True)
    flows = []
    for rank, (name, tenants, per_minute, turns) in enumerate(_SAGA):
        population: Population
        if sessions is None:
            spread = Spread(median=turns, sigma=0.2, least=turns // 2, most=2 * turns)
            population = MadeUp(msgspec.structs.replace(CODING, turns=spread))
        else:
            third = ranked[rank * len(ranked) // 3 : (rank + 1) * len(ranked) // 3]
            population = Recorded(third, replace=True)
        flows += [
            Flow(tenant=f"{name}-{number}", population=population, share=per_minute)
            for number in range(1, tenants + 1)
        ]
    return flows


# MARS (Efficient, Adaptive Co-Scheduling for Heterogeneous Agentic Systems) §6.1: mean prompt volume.
_MARS_TOKENS: Final = {"ilr1": 125_000, "ilr2": 167_000, "ilr3": 220_000, "ilr4": 263_000}
_MARS_POOL: Final = 400


def _prompt_tokens(session: Session) -> int:
    """Of all its prompts together."""
    return sum(turn.input_tokens for thread in session.threads for turn in thread.turns)


def _mars(tokens: int) -> Flows:
    def flows(sessions: Sequence[Session] | None, seed: int) -> list[Flow]:
        if sessions is None:
            rng = rng_of(seed, "pool")
            spread = Spread(median=10, sigma=0.8, least=2, most=60)
            kind = msgspec.structs.replace(CODING, turns=spread, opening_tokens=6000)
            sessions = [session_of(kind, rng, id_=f"{kind.name}-{n}") for n in range(_MARS_POOL)]
        return [Flow(tenant="default", population=Tilted(sessions, _prompt_tokens, tokens))]

    return flows


def _sutradhara(sessions: Sequence[Session] | None, seed: int) -> list[Flow]:
    """Of recorded sessions, those that call several tools at once."""
    if sessions is None:
        return [Flow(tenant="default", population=MadeUp(SEARCH))]
    wide = [s for s in sessions if any(len(t.tools) > 1 for thread in s.threads for t in thread.turns)]
    if not wide:
        raise ValueError("none of these sessions calls several tools at once")
    return [Flow(tenant="default", population=Recorded(wide, replace=True))]


def _orchestrated(sessions: Sequence[Session] | None, seed: int) -> list[Flow]:
    if sessions is not None:
        raise ValueError("of recorded sessions nobody knows how an orchestrator made their prompts")
    return [Flow(tenant="default", population=MadeUp(ORCHESTRATOR))]


# Agent.xpu (Efficient Scheduling of Agentic LLM Workloads on Heterogeneous SoC) §6.1, §6.4: Poisson,
# 3 reactive and 6 proactive requests a minute in the breakdowns.
_REACTIVE_PER_MINUTE: Final = 3
_PROACTIVE_PER_MINUTE: Final = 6


def _agent_xpu(sessions: Sequence[Session] | None, seed: int) -> list[Flow]:
    def population(made_up: Population) -> Population:
        return made_up if sessions is None else Recorded(sessions, replace=True)

    return [
        Flow(
            tenant="person",
            population=population(MadeUp(CHAT)),
            share=_REACTIVE_PER_MINUTE,
            service_class=ServiceClass.REACTIVE,
        ),
        Flow(
            tenant="background",
            population=population(MadeUp(BACKGROUND)),
            share=_PROACTIVE_PER_MINUTE,
            service_class=ServiceClass.PROACTIVE,
        ),
    ]


PRESETS: Final[dict[str, Preset]] = {
    "saga-tenants": Preset(
        flows=_saga,
        per_hour=60 * sum(tenants * per_minute for _, tenants, per_minute, _ in _SAGA),
        told="SAGA §9.1: 3 heavy, 4 medium, 3 light tenants with 16, 8, 4 tasks a minute of 100, 30, 10 steps"
        " for 64 GPUs; lengths ours (BurstGPT's in the paper)",
    ),
    **{
        f"mars-{name}": Preset(
            flows=_mars(tokens),
            per_hour=0.2 * 3600,
            told=f"MARS §6.1, {name.upper()}: sessions weighted so that the prompts of one add up to {tokens}"
            " tokens on average; the paper's pool is five benchmarks; 0.2 sessions a second for one H100",
        )
        for name, tokens in _MARS_TOKENS.items()
    },
    "sutradhara-fan-out": Preset(
        flows=_sutradhara,
        per_hour=0.01 * 3600,
        told="Sutradhara §3.2, §5.3: 2 iterations and 2 calls each at the median, up to 7 and 21, prompts of"
        " 20K tokens; 0.01 sessions a second for one GPU; the paper's trace is not public",
    ),
    "sutradhara-prompts": Preset(
        flows=_orchestrated,
        per_hour=0.0075 * 3600,
        told="Sutradhara §3.2, §3.3, §5.2: sessions of many calls, whose system prompt changes with the tools"
        " that were called, and whose calls are complete before their response; 0.0075 sessions a second for"
        " one GPU; lengths assumed where they are not printed",
    ),
    "agent-xpu": Preset(
        flows=_agent_xpu,
        per_hour=60 * (_REACTIVE_PER_MINUTE + _PROACTIVE_PER_MINUTE),
        told="Agent.xpu §6.1: reactive conversations (3 a minute) and proactive tasks (6 a minute),"
        " independent Poisson processes; lengths assumed",
    ),
}
