"""Sutradhara, as far as it schedules: turns by arrival of their task, and what is cached by what it is.

Source: Sutradhara (arXiv 2601.12967), §4.3: order by the task's arrival; eviction by tags, RESPONSE first,
then TOOL_OUTPUT, USER_QUERY, SYSTEM_PROMPT.

Symbols: the tags → `_TAGS`, of what a conversation ends with.

Deviations: of a conversation the last blocks go first, which is the tags' order within it. Prompts are not
split (partial prefill during a tool) and tools do not begin while their call is decoded: both need other
clients, and so do their gains.

Invariants: what was said last to nobody goes before what waits for a tool.
"""

from typing import Final

from gateway.simulator.baselines.by_order import OldestFirst
from gateway.simulator.baselines.plan import Plan, Recipe, Values
from gateway.simulator.engine.turn import EngineTurn

_TAGS: Final = {"response": 0.0, "tool_output": 1.0}
_LONGEST_S: Final = 1e9
"""No simulation takes as long: recency only decides among equals."""


class Sutradhara(OldestFirst):
    def eviction_rank(self, turn: EngineTurn, *, now: float) -> float:
        tag = "tool_output" if turn.turn.tools else "response"
        return _TAGS[tag] + turn.submitted_s / _LONGEST_S


def _sutradhara(plan: Plan, values: Values) -> Plan:
    return plan.with_policy(Sutradhara, by_priority=True)


SUTRADHARA = Recipe(
    name="sutradhara",
    summary="turns of the oldest task first; answers are evicted before tool outputs",
    source="arXiv 2601.12967",
    apply=_sutradhara,
)
