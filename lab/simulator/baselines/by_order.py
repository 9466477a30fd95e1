"""Order alone: who runs first, by what the engine's priority scheduling can be told of a turn.

Source: folklore. Oldest session first is Sutradhara's order by arrival of the task (arXiv 2601.12967, §4.3);
smallest first is the shortest job, by its prompt; reactive first is all that vLLM's own priorities can do for
two classes.

Deviations: vLLM's priority scheduling compares priorities when it lets turns in, and when it must preempt
one.

Invariants: of two turns that wait, the one of the older session (with the shorter prompt) is let in first;
equals in order of arrival.
"""

from lab.simulator.baselines.plan import Plan, Recipe, Values
from lab.simulator.engine.policy import EnginePolicy
from lab.simulator.engine.turn import EngineTurn
from lab.workload.trace.format import ServiceClass

PER_S = 1000
"""Priorities are whole numbers: milliseconds."""


class OldestFirst(EnginePolicy):
    def priority(self, turn: EngineTurn, *, now: float) -> int:
        return int(turn.session.arrival_s * PER_S)


class ReactiveFirst(EnginePolicy):
    def priority(self, turn: EngineTurn, *, now: float) -> int:
        return int(turn.session.service_class is ServiceClass.PROACTIVE)


class SmallestFirst(EnginePolicy):
    def priority(self, turn: EngineTurn, *, now: float) -> int:
        return turn.turn.input_tokens


def _oldest(plan: Plan, values: Values) -> Plan:
    return plan.with_policy(OldestFirst, by_priority=True)


def _reactive(plan: Plan, values: Values) -> Plan:
    return plan.with_policy(ReactiveFirst, by_priority=True)


def _smallest(plan: Plan, values: Values) -> Plan:
    return plan.with_policy(SmallestFirst, by_priority=True)


OLDEST_FIRST = Recipe(
    name="oldest-first",
    summary="turns of the oldest session first (vLLM priority)",
    source="Sutradhara §4.3",
    apply=_oldest,
)
REACTIVE_FIRST = Recipe(
    name="reactive-first",
    summary="what somebody waits for before background work (vLLM priority)",
    source="vLLM 0.32",
    apply=_reactive,
)
SMALLEST_FIRST = Recipe(
    name="smallest-first",
    summary="turns with the shortest prompt first (vLLM priority)",
    source="folklore",
    apply=_smallest,
)
