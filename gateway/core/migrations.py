"""Sessions on their way: what one left is computed where it goes, while its tools run (S7, S10).

Source: SAGA (§5.2): a stolen session's KV cache is moved before the session is.

Symbols: —

Deviations: SAGA's workers send each other KV blocks. A stock server has no such door, but it has a prefix
cache: it is sent the prompt of the last turn once more, for one token that nobody reads. Engines that share
a KV store through a connector load that prompt instead of computing it.

Invariants: a prefill takes a place on its replica from its command until its end is told, however it ends; of
a turn there is at most one.
"""

import msgspec

from gateway.core.commands import Command, Prefill, StopPrefill
from gateway.core.fleet import Fleet
from gateway.core.lifecycle import LifecycleError
from gateway.core.stream import Stream
from gateway.domain.ids import ReplicaId, RequestId, SessionId, ThreadId
from gateway.domain.request import Usage
from gateway.routing.placement import PlacementPolicy
from gateway.routing.stealing import Steal


class _Move(msgspec.Struct, eq=False):
    steal: Steal
    began_s: float
    is_off: bool = False
    """The session goes on where it is, or not at all."""


class Migrations:
    def __init__(self, fleet: Fleet, placement: PlacementPolicy, out: list[Command]) -> None:
        self._fleet = fleet
        self._placement = placement
        self._out = out
        self._stream = Stream(out)
        self._under_way: dict[RequestId, _Move] = {}

    def __bool__(self) -> bool:
        return bool(self._under_way)

    def at(self, replica: ReplicaId) -> int:
        """Prefills that have a place there."""
        return sum(move.steal.thief == replica for move in self._under_way.values())

    def begin(self, steal: Steal, hint: str | None, *, now: float) -> None:
        session, thread = steal.conversation
        prefill = Prefill(turn=steal.turn, session=session, thread=thread, replica=steal.thief, hint=hint)
        self._fleet.submitted(steal.thief)
        self._under_way[steal.turn] = _Move(steal, now)
        self._out.append(prefill)

    def goes_on(self, session: SessionId, thread: ThreadId | None = None) -> None:
        """Its next turn is sent, or it is over (`thread`: None for all of them): no prefill is awaited."""
        for turn, move in self._under_way.items():
            moving, its_thread = move.steal.conversation
            if moving == session and thread in (None, its_thread) and not move.is_off:
                move.is_off = True
                self._out.append(StopPrefill(turn=turn))

    def ended(self, turn: RequestId, usage: Usage | None, *, now: float) -> ReplicaId:
        """Where it had its place. `usage`: None if it did not come to its end."""
        move = self._under_way.pop(turn, None)
        if move is None:
            raise LifecycleError(f"no prefill of {turn} is under way")
        self._fleet.ended(move.steal.thief)
        self._placement.moved(move.steal, None if move.is_off else usage)
        outcome = "late" if move.is_off else "ready" if usage is not None else "failed"
        self._stream.moved(move.steal, outcome, usage or Usage(), took_s=now - move.began_s, now=now)
        return move.steal.thief
