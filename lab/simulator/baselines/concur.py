"""Concur: AIMD on the number of agents, by the KV cache's use and its hit rate.

Source: Concur (arXiv 2601.22705), §4.2 (agents are admitted, paused, resumed), §4.3 Eq. 1, §5.1 (constants).
Read in public notes that print Eq. 1 and the constants, not in the paper itself.

Symbols: W_t → `_State.window`; U_t → share of the KV blocks that requests hold, as the engine reports it; H_t
→ the cached share of the prompts that were answered since the last report; α, β, U_low, U_high, H_thresh →
`_ALPHA`, `_BETA`, `_LOW`, `_HIGH`, `_HITS`.

Deviations: the control period and the first window are not printed; they are a second, and the knob `first`.
A window grows only while somebody waits for it: the paper's batches always do. Which agents pause is not
printed; here those that came last.

Invariants: an agent pauses between turns only; of those on a replica no more than its window start a turn,
and at least one may.
"""

from collections.abc import Iterator, Mapping

import msgspec

from gateway.core import events as ev
from gateway.core.commands import Command
from gateway.domain.ids import ReplicaId
from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.router import Affinity, ReplicaBook, Router, Turn
from lab.simulator.fleet import FleetSpec

_ALPHA, _BETA = 2, 0.5
_LOW, _HIGH = 0.2, 0.5
_HITS = 0.2


class _State(msgspec.Struct):
    """Of one replica."""

    window: float
    prompt_tokens: int = 0
    """Since the last report."""
    cached_tokens: int = 0


class ConcurRouter(Router):
    def __init__(self, kv_tokens: Mapping[str, int], first: int) -> None:
        super().__init__(kv_tokens, Affinity(), None)
        self._first = first
        self._states: dict[ReplicaId, _State] = {}

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        match event:
            case ev.EngineReported():
                self._control(self._state(event.replica), event.signals.kv_used or 0.0)
                return list(self._let_in(now=now))
            case ev.ResponseFinished():
                book, usage = self.live[event.request].book, event.answer.usage
                assert book is not None
                state = self._state(book.replica)
                state.prompt_tokens += usage.prompt_tokens or 0
                state.cached_tokens += usage.cached_tokens or 0
            case _:
                pass
        return super().handle(event, now=now)

    def _control(self, state: _State, used: float) -> None:
        """Eq. 1."""
        hits = state.cached_tokens / state.prompt_tokens if state.prompt_tokens else 1.0
        if used < _LOW and self._waiting:
            state.window += _ALPHA
        elif used > _HIGH and hits < _HITS:
            state.window = max(1.0, state.window * _BETA)
        state.prompt_tokens = state.cached_tokens = 0

    def _state(self, replica: ReplicaId) -> _State:
        return self._states.setdefault(replica, _State(self._first))

    def _ready(self) -> Iterator[Turn]:
        """Agents resume, or go on, in the order in which they entered; newcomers get what is left."""
        active = {name for book in self._books for name in list(book.members)[: self._size(book)]}
        for turn in list(self._waiting.values()):
            if turn.member.book is None:
                room = [book for book in self._books if len(book.members) < self._size(book)]
                if not room:
                    continue
                self._enter(turn.member, self._placement.choose(turn.member, room))
                active.add(turn.member.name)
            if turn.member.name in active:
                yield turn

    def _size(self, book: ReplicaBook) -> int:
        return int(self._state(book.replica).window)


def _concur(plan: Plan, values: Values) -> Plan:
    def brain(fleet: FleetSpec) -> ConcurRouter:
        return ConcurRouter(plan.kv_tokens(fleet), int(values["first"]))

    return plan.with_brain(brain)


CONCUR = Recipe(
    name="concur",
    summary="AIMD on the number of agents, by KV use and hit rate; agents pause between turns",
    source="arXiv 2601.22705",
    apply=_concur,
    knobs=(Knob(name="first", default=8, sweep=(4, 8, 16), meaning="agents on a replica at first"),),
)
