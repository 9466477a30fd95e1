"""Bélády: what is needed again last is overwritten first. The bound for eviction.

Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5
(1966); SAGA measures itself against it (§7.1).

Symbols: next use of a block → `Belady._next_use_s`.

Deviations: by conversation, not by block; of one, the end goes before the beginning, which is shared. The
next use is when the conversation would come back if nothing were in its way; it comes later where tools
slow each other down or sub-agents queue. Within vLLM: running turns keep their blocks.

Invariants: a conversation that never comes back goes before all that do; those whose next turn waits go last,
and of them the first in the queue.
"""

import math

from lab.simulator.baselines.pauses import gap_s
from lab.simulator.baselines.plan import Plan, Recipe, Values
from lab.simulator.engine.policy import EnginePolicy
from lab.simulator.engine.turn import EngineTurn

_LONGEST_S = 1e9
"""No simulation takes as long."""

_Conversation = tuple[str, int]


class Belady(EnginePolicy):
    def __init__(self) -> None:
        self._next_use_s: dict[_Conversation, float] = {}
        """Of conversations that pause."""
        self._came_s: dict[_Conversation, float] = {}
        """When those came back that wait or run."""

    def priority(self, turn: EngineTurn, *, now: float) -> int:
        """No order; a conversation is back."""
        conversation = turn.session.id, turn.ref.thread
        self._next_use_s.pop(conversation, None)
        self._came_s[conversation] = now
        return 0

    def retain_until(self, turn: EngineTurn, *, now: float) -> float | None:
        """Nothing is retained; a conversation pauses, or is over."""
        conversation = turn.session.id, turn.ref.thread
        self._came_s.pop(conversation, None)
        gap = gap_s(turn.session, turn.ref)
        if gap is not None:
            self._next_use_s[conversation] = now + gap
        return None

    def eviction_rank(self, turn: EngineTurn, *, now: float) -> float:
        if turn.is_last:
            return -math.inf
        conversation = turn.session.id, turn.ref.thread
        next_use_s = self._next_use_s.get(conversation)
        if next_use_s is None:  # it waits: for those who came before it, but for nobody who comes
            next_use_s = now + self._came_s.get(conversation, now) / _LONGEST_S
        return -next_use_s


def _belady(plan: Plan, values: Values) -> Plan:
    return plan.with_policy(Belady)


BELADY = Recipe(
    name="belady",
    summary="evicts what is needed again last",
    source="Belady 1966",
    apply=_belady,
    is_clairvoyant=True,
)
