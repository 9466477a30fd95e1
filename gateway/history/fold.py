"""The stream, folded into what is remembered: turns that are over, sessions, moves of the window (pure).

Source: MARS (§4.1): one producer, many readers.

Deviations: a turn is remembered as its records, those that told of its session meanwhile among them, with
what `explain` needs beside them: how much ran on each replica when it was sent.

Invariants: at most `MAX_OPEN` turns are open, of each at most `MAX_RECORDS` records are kept; a turn is
handed out once, at the second `finished` behind its end, so that what is said right after its end is in; what
comes later is handed out by itself. A turn takes at most `MAX_TOLD_BYTES`.
"""

import zlib
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Any, Final, NamedTuple

import msgspec

from gateway.domain import records as rec
from gateway.domain.admission_records import SessionAdmitted, SessionHeld, WindowUpdated
from gateway.domain.ids import ReplicaId, RequestId, SessionId
from gateway.history.packing import PACKERS, SHAPE, pack

MAX_OPEN: Final = 20_000
MAX_RECORDS: Final = 200
"""As many as `explain` shows."""
MAX_TOLD_BYTES: Final = 16_384
"""Of a turn; names of tools and models are as long as clients make them."""
_MAX_RECORD_BYTES: Final = 512
"""Of a record of such a turn; larger ones are left out."""
_MAX_NAME: Final = 256
MAX_LOADS: Final = 64
"""Replicas whose load is kept with a turn: those that ran least, and its own."""
SHAPE_NUMBER: Final = zlib.crc32(msgspec.json.encode(SHAPE))
"""By which what is packed names the shape that it has."""

_encode: Final = msgspec.msgpack.Encoder().encode


class TurnRow(NamedTuple):
    """A turn, as the store has it."""

    turn: str
    session: str | None
    tenant: str | None
    model: str | None
    replica: str | None
    arrived_s: float
    ended_s: float
    queue_ms: float | None
    first_ms: float | None
    """From its last submission to its first token."""
    run_ms: float | None
    """From its last submission to its end."""
    outcome: str | None
    """As `gpu_end` says; or `refused`, or `left`; None if its end was not seen."""
    told: bytes
    """MessagePack: the number of its shape, its records, its session, loads."""


class SessionRow(msgspec.Struct, kw_only=True):
    """What is new of a session since it was handed out the last time."""

    session: str
    tenant: str | None
    parent: str | None = None
    source: str | None = None
    confidence: float | None = None
    schema: str | None = None
    model: str | None = None
    started_s: float
    last_s: float
    ended_s: float | None = None
    end_reason: str | None = None
    turns: int = 0
    troubles: int = 0
    """Turns that were refused, or did not come to their end."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class Finished(NamedTuple):
    """What is to be written."""

    turns: list[TurnRow]
    sessions: list[SessionRow]
    moments: list[tuple[float, bytes]]
    """When, and MessagePack: the number of its shape, one record."""
    late: list[tuple[str, bytes]]
    """Turn, and the same."""

    def parts(self, turns: int) -> "list[Finished]":
        """The same in several, each with at most so many turns."""
        first, rest = self._replace(turns=self.turns[:turns]), self.turns[turns:]
        more = [Finished(rest[at : at + turns], [], [], []) for at in range(0, len(rest), turns)]
        return [first, *more]


class OpenTurn:
    __slots__ = ("end", "id", "loads", "records", "session")

    def __init__(self, turn: RequestId, session: SessionId | None) -> None:
        self.id = turn
        self.session = session
        self.records: list[rec.Record] = []
        self.loads: dict[ReplicaId, int] = {}
        self.end: str | None = None


class Fold:
    def __init__(self) -> None:
        self._turns: dict[RequestId, OpenTurn] = {}
        self._newest: dict[SessionId, OpenTurn] = {}
        """Of each session that has a turn in `_turns`."""
        self._started: dict[SessionId, rec.SessionStarted] = {}
        """Whose first turn has not come yet."""
        self._running: dict[ReplicaId, int] = {}
        self._over: list[OpenTurn] = []
        self._over_before: list[OpenTurn] = []
        self._sessions: dict[SessionId, SessionRow] = {}
        self._moments: list[tuple[float, bytes]] = []
        self._late: list[tuple[str, bytes]] = []

    def take(self, records: Iterable[rec.Record], running: Mapping[ReplicaId, int]) -> None:
        """`running`: how many turns each replica that is up runs after these records."""
        record: Any
        turns, of_turns = self._turns, _OF_TURNS  # a turn has about ten of them
        for record in records:
            kind = type(record)
            if kind in of_turns:
                turn = turns.get(record.turn)
                if turn is None:
                    if kind is not rec.TurnArrived:
                        self._came_late(record)
                        continue
                    turn = self._arrived(record)
                kept = turn.records
                if len(kept) < MAX_RECORDS:
                    kept.append(record)
                if kind in _STEPS:
                    self._step(kind, turn, record)
            elif kind in _OF_SESSIONS:
                self._of_session(record)
            elif kind in _MOMENTS:
                self._moments.append((record.at_s, _encode((SHAPE_NUMBER, pack(record)))))
        self._running = dict(running)

    def finished(self, *, with_sessions: bool = True, everything: bool = False) -> Finished:
        """What is over and was not handed out yet; with `everything` the turns that are open, too."""
        over = self._over_before
        self._over_before, self._over = self._over, []
        if everything:
            over = [*over, *self._over_before]
            open_still = [turn for turn in self._turns.values() if turn.end is None]
            over += open_still
            self._over_before = []
        rows = []
        for turn in over:
            rows.append(self._row(turn))
            if self._turns.get(turn.id) is turn:
                del self._turns[turn.id]
            if turn.session is not None and self._newest.get(turn.session) is turn:
                del self._newest[turn.session]
        sessions: list[SessionRow] = []
        if with_sessions or len(self._sessions) > MAX_OPEN:
            sessions, self._sessions = list(self._sessions.values()), {}
        moments, self._moments = self._moments, []
        late, self._late = self._late, []
        return Finished(rows, sessions, moments, late)

    def open_turn(self, turn: RequestId) -> OpenTurn | None:
        """One that was not handed out yet. Any thread may ask."""
        return self._turns.get(turn)

    def open_turns_of(self, session: SessionId) -> list[OpenTurn]:
        """The same. Any thread may ask."""
        return [turn for turn in list(self._turns.values()) if turn.session == session]

    # --- folds -----------------------------------------------------------------------------------

    def _step(self, kind: type, turn: OpenTurn, record: Any) -> None:
        if kind is rec.Routed:
            turn.loads = self._loads(record.replica)
        elif kind is rec.GpuSubmit:
            self._running[record.replica] = self._running.get(record.replica, 0) + 1
        elif kind is rec.GpuEnd:
            self._running[record.replica] = max(0, self._running.get(record.replica, 0) - 1)
            if record.outcome != "failed":  # else another replica is tried, or it is refused
                self._ended(turn, record.outcome)
                self._count(turn, record)
        elif kind is rec.Refused:
            self._ended(turn, "refused")
        else:
            self._ended(turn, "left")

    def _came_late(self, record: Any) -> None:
        """Its turn was handed out."""
        told = (SHAPE_NUMBER, [pack(record)], record.session)
        self._late.append((record.turn, _encode(told)))

    def _arrived(self, record: rec.TurnArrived) -> OpenTurn:
        turn = self._turns[record.turn] = OpenTurn(record.turn, record.session)
        if len(self._turns) > MAX_OPEN:
            oldest = self._turns.pop(next(iter(self._turns)))
            self._ended(oldest, None)
        if (session := record.session) is not None:
            self._newest[session] = turn
            if (started := self._started.pop(session, None)) is not None:
                turn.records.append(started)
            row = self._row_of(session, record.at_s)
            row.tenant, row.model = _short(record.tenant), _short(record.model)
            row.turns += 1
        return turn

    def _ended(self, turn: OpenTurn, end: str | None) -> None:
        if turn.end is not None:
            return
        turn.end = end if end is not None else "unseen"
        self._over.append(turn)
        if end not in ("finished", None) and turn.session is not None:
            self._row_of(turn.session, turn.records[-1].at_s).troubles += 1

    def _count(self, turn: OpenTurn, record: rec.GpuEnd) -> None:
        if turn.session is not None:
            row, usage = self._row_of(turn.session, record.at_s), record.usage
            row.prompt_tokens += usage.prompt_tokens or 0
            row.cached_tokens += usage.cached_tokens or 0
            row.output_tokens += usage.output_tokens or 0

    def _of_session(self, record: Any) -> None:
        if isinstance(record, rec.SessionStarted):
            self._started[record.session] = record
            if len(self._started) > MAX_OPEN:
                self._started.pop(next(iter(self._started)))
            row = self._row_of(record.session, record.at_s)
            row.tenant, row.parent = _short(record.tenant), record.parent
            row.source, row.confidence, row.schema = record.source.value, record.confidence, record.schema
        elif isinstance(record, rec.SessionEnded):
            row = self._row_of(record.session, record.at_s)
            row.ended_s, row.end_reason = record.at_s, record.reason
        elif (turn := self._newest.get(record.session)) is not None and turn.end is None:
            if len(turn.records) < MAX_RECORDS:
                turn.records.append(record)

    def _row_of(self, session: SessionId, at_s: float) -> SessionRow:
        row = self._sessions.get(session)
        if row is None:
            row = SessionRow(session=session, tenant=None, started_s=at_s, last_s=at_s)
            self._sessions[session] = row
        row.last_s = at_s
        return row

    def _loads(self, chosen: ReplicaId) -> dict[ReplicaId, int]:
        running = self._running
        if len(running) <= MAX_LOADS:
            return running.copy()
        least = dict(nsmallest(MAX_LOADS - 1, running.items(), key=lambda item: item[1]))
        return {**least, chosen: running.get(chosen, 0)}

    def _row(self, turn: OpenTurn) -> TurnRow:
        records = turn.records
        packed = [PACKERS[type(record)](record) for record in records]
        newest: dict[type, Any] = {type(record): record for record in records}
        arrived, routed = newest.get(rec.TurnArrived), newest.get(rec.Routed)
        first, end = newest.get(rec.GpuFirstToken), newest.get(rec.GpuEnd)
        waited = newest.get(rec.Refused) or newest.get(rec.TurnLeft) or routed
        told = _encode((SHAPE_NUMBER, packed, turn.session, turn.loads))
        if len(told) > MAX_TOLD_BYTES:
            packed = [each for each in packed if len(_encode(each)) <= _MAX_RECORD_BYTES]
            told = _encode((SHAPE_NUMBER, packed, turn.session, turn.loads))
        if len(told) > MAX_TOLD_BYTES:
            told = _encode((SHAPE_NUMBER, [], turn.session, {}))
        return TurnRow(
            turn.id,
            turn.session,
            _short(arrived.tenant) if arrived is not None else None,
            _short(arrived.model) if arrived is not None else None,
            routed.replica if routed is not None else None,
            records[0].at_s,
            records[-1].at_s,
            waited.waited_ms if waited is not None else None,
            first.launch_delay_ms if first is not None else None,
            end.duration_ms if end is not None else None,
            turn.end if turn.end != "unseen" else None,
            told,
        )


_OF_TURNS: Final = frozenset(
    (
        *(rec.TurnArrived, rec.TurnWaited, rec.TurnLeft, rec.TurnWouldWait, rec.Routed, rec.ModelChosen),
        *(rec.GpuSubmit, rec.GpuFirstToken, rec.GpuEnd, rec.ToolStart, rec.ToolEnd, rec.ToolTimed),
        *(rec.StepPredicted, rec.PrefilledAhead, rec.PrefillLegEnded, rec.Refused),
        rec.BoundReached,
    )
)
_STEPS: Final = frozenset((rec.Routed, rec.GpuSubmit, rec.GpuEnd, rec.Refused, rec.TurnLeft))
_OF_SESSIONS: Final = frozenset(
    (rec.SessionStarted, rec.SessionEnded, rec.SessionStopped, SessionHeld, SessionAdmitted)
)
_MOMENTS: Final = frozenset((WindowUpdated, rec.ReplicaChanged))


def _short(name: str | None) -> str | None:
    return name if name is None or len(name) <= _MAX_NAME else name[:_MAX_NAME]
