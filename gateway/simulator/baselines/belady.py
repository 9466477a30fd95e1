"""Bélády: what is needed again last is overwritten first. The bound for eviction.

Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5
(1966); SAGA measures itself against it (§7.1).

Symbols: next use of a block → `Belady._next_use_s`.

Deviations: by conversation, not by block; of one, the end goes before the beginning, which is shared. The
next use is when the conversation would come back if nothing were in its way; it comes later where tools
slow each other down or sub-agents queue. Within vLLM: running turns keep their blocks.

Invariants: a conversation that never comes back goes before all that do; one whose next turn waits goes last.
"""

import math

from gateway.simulator.baselines.pauses import gap_s
from gateway.simulator.baselines.plan import Plan, Recipe, Values
from gateway.simulator.engine.policy import EnginePolicy
from gateway.simulator.engine.turn import EngineTurn

_Conversation = tuple[str, int]


class Belady(EnginePolicy):
    def __init__(self) -> None:
        self._next_use_s: dict[_Conversation, float] = {}
        """Of conversations that pause. Those that are not here are at work."""

    def priority(self, turn: EngineTurn, *, now: float) -> int:
        """No order; a conversation is back."""
        self._next_use_s.pop((turn.session.id, turn.ref.thread), None)
        return 0

    def retain_until(self, turn: EngineTurn, *, now: float) -> float | None:
        """Nothing is retained; a conversation pauses, or is over."""
        gap = gap_s(turn.session, turn.ref)
        if gap is not None:
            self._next_use_s[turn.session.id, turn.ref.thread] = now + gap
        return None

    def eviction_rank(self, turn: EngineTurn, *, now: float) -> float:
        if turn.is_last:
            return -math.inf
        return -self._next_use_s.get((turn.session.id, turn.ref.thread), now)


def _belady(plan: Plan, values: Values) -> Plan:
    return plan.with_policy(Belady)


BELADY = Recipe(
    name="belady",
    summary="evicts what is needed again last",
    source="Belady 1966",
    apply=_belady,
    is_clairvoyant=True,
)
