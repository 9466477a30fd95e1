"""The newest turns of each session, from the stream.

It is folded out of the ring on request, from where it stopped the last time. So it costs nothing
while nobody looks, and knows what the ring knew.

Invariants: at most `MAX_SESSIONS` sessions, of each at most `TURNS_OF_A_SESSION` turns, and `MAX_OPEN` turns
are kept.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.snapshot import TurnView
from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.ids import PoolId, RequestId, SessionId
from gateway.telemetry.ring import Ring

TURNS_OF_A_SESSION: Final = 16
MAX_SESSIONS: Final = 2000
MAX_OPEN: Final = 20_000
UPDATES_OF_A_POOL: Final = 20
_MAX_POOLS: Final = 256


class TurnLog:
    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.number = 0
        self._turns: OrderedDict[RequestId, TurnView] = OrderedDict()
        self._sessions: OrderedDict[SessionId, deque[TurnView]] = OrderedDict()
        self._updates: dict[PoolId, deque[WindowUpdated]] = {}
        self._folds: dict[type, Callable[[Any], None]] = {
            rec.TurnArrived: self._arrived,
            rec.ToolEnd: self._tools_ended,
            rec.SessionEnded: self._session_ended,
            WindowUpdated: self._window_updated,
        }

    def catch_up(self, limit: int) -> bool:
        self.number = max(self.number, self._ring.first - 1)
        records = self._ring.behind(self.number, limit)
        record: Any
        for record in records:
            if (fold := self._folds.get(type(record))) is not None:
                fold(record)
            elif hasattr(record, "turn") and (turn := self._turns.get(record.turn)) is not None:
                _fold(turn, record)
                if isinstance(record, rec.Refused | rec.TurnLeft):
                    del self._turns[record.turn]
        self.number += len(records)
        return self.number >= self._ring.last

    def of(self, session: SessionId) -> Sequence[TurnView]:
        return tuple(self._sessions.get(session, ()))

    def updates(self, pool: PoolId) -> Sequence[WindowUpdated]:
        return tuple(self._updates.get(pool, ()))

    def _arrived(self, record: rec.TurnArrived) -> None:
        if record.session is None:
            return
        turn = TurnView(
            turn=record.turn,
            thread=record.thread,
            edge=record.edge,
            parent=record.parent,
            model=record.model,
            arrived_s=record.at_s,
            is_streamed=record.is_streamed,
            client=record.client,
            source=record.source,
            confidence=record.confidence,
        )
        self._turns[record.turn] = turn
        if len(self._turns) > MAX_OPEN:
            self._turns.popitem(last=False)
        turns = self._sessions.get(record.session)
        if turns is None:
            turns = self._sessions[record.session] = deque(maxlen=TURNS_OF_A_SESSION)
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        else:
            self._sessions.move_to_end(record.session)
        turns.append(turn)

    def _tools_ended(self, record: rec.ToolEnd) -> None:
        for turn in reversed(self._sessions.get(record.session, ())):
            if turn.tools and turn.tools_ended_s is None and turn.turn != record.turn:
                turn.tools_ended_s = record.at_s - record.late_s
                return

    def _session_ended(self, record: rec.SessionEnded) -> None:
        for turn in self._sessions.pop(record.session, ()):
            self._turns.pop(turn.turn, None)

    def _window_updated(self, record: WindowUpdated) -> None:
        updates = self._updates.get(record.pool)
        if updates is None and len(self._updates) < _MAX_POOLS:
            updates = self._updates[record.pool] = deque(maxlen=UPDATES_OF_A_POOL)
        if updates is not None:
            updates.append(record)


def _fold(turn: TurnView, record: rec.Record) -> None:
    match record:
        case rec.TurnWaited():
            turn.wait_reason = record.reason
        case rec.Routed():
            turn.replica, turn.reason, turn.queue_ms = record.replica, record.reason, record.waited_ms
        case rec.GpuSubmit():
            turn.submitted_s = record.at_s
            turn.first_token_s = turn.ended_s = turn.outcome = None  # of an attempt before
            if record.expected is not None:
                turn.expected_first_token_ms = record.expected.first_token_ms
                turn.expected_completion_ms = record.expected.completion_ms
        case rec.GpuFirstToken():
            turn.first_token_s = record.at_s
        case rec.GpuEnd():
            usage = record.usage
            turn.ended_s, turn.outcome, turn.status = record.at_s, record.outcome, record.status
            turn.prompt_tokens, turn.cached_tokens = usage.prompt_tokens, usage.cached_tokens
            turn.output_tokens = usage.output_tokens
        case rec.Refused():
            turn.ended_s, turn.outcome, turn.refusal = record.at_s, "refused", record.reason
            turn.queue_ms = record.waited_ms
        case rec.TurnLeft():
            turn.ended_s, turn.outcome, turn.queue_ms = record.at_s, "client_left", record.waited_ms
        case rec.ToolStart():
            turn.tools = record.names
        case _:
            pass
