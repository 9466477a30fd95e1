"""Answers from the segments of a store, newest first.

Each answer of SQLite is one row of text: between two rows the interpreter's lock is given up, and a busy
event loop gives it back late. A segment that is gone, damaged or of another version is left out.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from gateway.domain.admission_records import WindowUpdated
from gateway.domain.ids import ReplicaId, RequestId, SessionId
from gateway.domain.records import GpuSubmit, Record, Refused, Routed, TurnLeft, TurnWaited
from gateway.history import schema
from gateway.history.packing import Shape, unpack
from gateway.history.segments import Segments

DEADLINE_S: Final = 5.0
"""For one question; what is found by then is the answer."""
_SUBMIT: Final = str(GpuSubmit.__struct_config__.tag)
_NEIGHBOURS: Final = 100
"""Turns that ended before one, of which is learned how quick each replica was."""
_MOMENTS: Final = 20
"""Among which the last move of the window is looked for; the others are changes of replicas."""
_MAX_LATE: Final = 50
_MAX_TURNS: Final = 500
"""Of a session, in one answer."""
MAX_KIN: Final = 100
_MAX_ANCESTORS: Final = 8
_OPS: Final = 1_000_000
"""Steps of SQLite's machine between two looks at the clock."""

_DECIDES: Final = (Routed, Refused, TurnWaited, TurnLeft)

_decode: Final = msgspec.msgpack.Decoder().decode
T = TypeVar("T")


class StoredTurn(NamedTuple):
    turn: RequestId
    session: SessionId | None
    records: list[Record]
    loads: dict[ReplicaId, int]
    """When it was sent."""
    before: list[GpuSubmit]
    """Of turns that were over when it was decided, the newest first, until each replica in `loads` was
    seen to compute something."""
    window: WindowUpdated | None
    """What moved it last before the turn was decided; None where nothing was decided."""


class Found(NamedTuple):
    """Of a session."""

    session: dict[str, Any] | None
    turns: list[tuple[RequestId, list[Record]]]
    """The newest, oldest first."""
    is_cut: bool
    """There are older ones."""
    kin: list[dict[str, Any]]
    """Sessions that it runs for, and that run for it: rows of the table."""


class Reader:
    """To be used by one thread at a time. Raises OSError if the directory cannot be read."""

    def __init__(self, segments: Segments, *, monotonic: Callable[[], float]) -> None:
        self._segments = segments
        self._monotonic = monotonic
        self._shapes: dict[int, Shape] = {}
        self._open: dict[Path, sqlite3.Connection] = {}
        """By the path of their segment."""
        self._until = 0.0
        """When the question that is asked now must be answered."""

    def turn(self, turn: RequestId) -> StoredTurn | None:
        late: list[Record] = []
        for found, more in self._ask(lambda connection: self._turn(connection, turn)):
            late += more
            if found is not None:
                records = sorted([*found.records, *late], key=lambda record: record.at_s)
                return found._replace(records=records)
        return StoredTurn(turn, None, late, {}, [], None) if late else None

    def beside(
        self, records: list[Record], loads: Mapping[ReplicaId, int]
    ) -> tuple[list[GpuSubmit], WindowUpdated | None]:
        """Of a turn that is not in the store yet: what was so when it was decided."""
        return next(self._ask(lambda connection: self._beside(connection, records, loads)), ([], None))

    def session(self, session: SessionId, *, before_s: float | None = None) -> Found:
        """`before_s`: turns that arrived before that."""
        turns: list[tuple[RequestId, list[Record]]] = []
        rows: list[dict[str, Any]] = []

        def question(connection: sqlite3.Connection) -> None:
            rows.extend(_rows(connection, "session = ?1 OR parent = ?1", (session,)))
            until_s = before_s if before_s is not None else 1e12
            most = max(0, _MAX_TURNS + 1 - len(turns))
            for text in _list(connection, _OF_A_SESSION, session, until_s, most, _MAX_LATE):
                turn, told, late = msgspec.json.decode(text)
                records = [*self._told(turn, told)[0], *self._late(turn, late)]
                turns.append((turn, sorted(records, key=lambda record: record.at_s)))

        for _ in self._ask(question):
            pass
        merged = {row["session"]: row for row in merge_sessions(rows)}
        own = merged.pop(session, None)
        kin = sorted(merged.values(), key=lambda row: float(row["started_s"]))[:MAX_KIN]
        turns = sorted((each for each in turns if each[1]), key=lambda each: each[1][0].at_s)
        return Found(own, turns[-_MAX_TURNS:], len(turns) > _MAX_TURNS, [*self._ancestors(own), *kin])

    def sessions(self, where: str, values: tuple[Any, ...], *, limit: int) -> list[dict[str, Any]]:
        """Rows of the table, who was seen last first. `where` is a condition of ours, never of a client."""
        answers = self._ask(lambda connection: _rows(connection, where, values, limit=limit))
        rows = merge_sessions([row for answer in answers for row in answer])
        return sorted(rows, key=lambda row: -float(row["last_s"]))[:limit]

    def measures(
        self, where: str, values: tuple[Any, ...], *, from_s: float, to_s: float, sample: int
    ) -> tuple[int, list[list[Any]]]:
        """How many turns ended then, and of about `sample` of them, evenly spread, those that `where` fits:
        `[queue_ms, first_ms, run_ms, outcome]`."""
        total = sum(max(0, high - low + 1) for low, high in self._ask(lambda c: _span(c, from_s, to_s)))
        step = max(1, -(-total // sample))
        sql = f"{_PICKED} WHERE {where}"

        def question(connection: sqlite3.Connection) -> list[str]:
            low, high = _span(connection, from_s, to_s)
            return _list(connection, sql, low, step, step, high, *values) if high >= low else []

        return total, [msgspec.json.decode(each) for answer in self._ask(question) for each in answer]

    def since_s(self) -> float | None:
        """The oldest turn's end; None if there is none."""
        firsts = self._ask(lambda connection: _one(connection, "SELECT min(ended_s) FROM turns"))
        return min((float(first) for first in firsts if first is not None), default=None)

    # --- segments --------------------------------------------------------------------------------

    def close(self) -> None:
        """Files that are gone are only free when nobody has them open: to be called when nobody has asked
        for a while."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> Iterator[T]:
        """What each segment answers, the newest first."""
        self._until = self._monotonic() + DEADLINE_S
        segments = {segment.path: segment for segment in self._segments.all()[::-1]}
        for path in self._open.keys() - segments:
            self._open.pop(path).close()
        for path in segments:
            if self._is_late():
                return
            try:
                answer = question(self._connection(path))
            except sqlite3.Error:
                if (connection := self._open.pop(path, None)) is not None:
                    connection.close()
                continue
            yield answer

    def _connection(self, path: Path) -> sqlite3.Connection:
        """Raises sqlite3.Error, for a segment of another version too."""
        if (known := self._open.get(path)) is not None:
            return known
        # By its URI, so that one that is gone is not made anew.
        uri = f"{path.absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, timeout=1)
        self._open[path] = connection
        connection.set_progress_handler(self._is_late, _OPS)
        connection.execute("PRAGMA query_only = 1")
        if not schema.is_ours(connection):
            raise sqlite3.DatabaseError("a segment of another version")
        self._learn_shapes(connection)
        return connection

    def _is_late(self) -> bool:
        return self._monotonic() > self._until

    def _learn_shapes(self, connection: sqlite3.Connection) -> None:
        for number, shape in connection.execute("SELECT number, shape FROM shapes").fetchall():
            if number not in self._shapes:
                self._shapes[number] = msgspec.json.decode(shape, type=Shape)

    def _turn(
        self, connection: sqlite3.Connection, turn: RequestId
    ) -> tuple[StoredTurn | None, list[Record]]:
        told, late, *beside = connection.execute(_TURN, (turn, _MAX_LATE)).fetchone()
        more = self._late(turn, late)
        if told is None:
            return None, more
        records, session, loads = self._told(turn, told)
        return StoredTurn(turn, session, records, loads, *self._surroundings(*beside, of=loads)), more

    def _beside(
        self, connection: sqlite3.Connection, records: list[Record], loads: Mapping[ReplicaId, int]
    ) -> tuple[list[GpuSubmit], WindowUpdated | None]:
        at_s = max((each.at_s for each in records if isinstance(each, _DECIDES)), default=None)
        return self._surroundings(*connection.execute(_BESIDE, (at_s,)).fetchone(), of=loads)

    def _surroundings(
        self, turns: str | None, moments: str | None, *, of: Iterable[ReplicaId]
    ) -> tuple[list[GpuSubmit], WindowUpdated | None]:
        """Of what `_BESIDE` finds; turns only until each replica was seen to compute something."""
        before: list[GpuSubmit] = []
        unseen = set(of)
        for line in turns.split("\n") if turns is not None else ():
            if not unseen:
                break
            turn, told = msgspec.json.decode(line)
            number, packed, session, _ = _decode(bytes.fromhex(told))
            shape = self._shapes.get(number, [])
            for submit in unpack(packed, shape, turn=turn, session=session, only=_SUBMIT):
                if isinstance(submit, GpuSubmit):
                    before.append(submit)
                    expected = submit.expected
                    if expected is not None and expected.prompt_tokens > expected.cached_tokens:
                        unseen.discard(submit.replica)
        for told in moments.split("\n") if moments is not None else ():
            number, packed = _decode(bytes.fromhex(told))
            for record in unpack([packed], self._shapes.get(number, []), turn=None, session=None):
                if isinstance(record, WindowUpdated):
                    return before, record
        return before, None

    # --- what is packed --------------------------------------------------------------------------

    def _told(
        self, turn: RequestId, told: str
    ) -> tuple[list[Record], SessionId | None, dict[ReplicaId, int]]:
        number, packed, session, loads = _decode(bytes.fromhex(told))
        return unpack(packed, self._shapes.get(number, []), turn=turn, session=session), session, loads

    def _late(self, turn: RequestId, told: str | None) -> list[Record]:
        """`told`: in hexadecimal, line by line."""
        late: list[Record] = []
        for line in told.split("\n") if told is not None else ():
            number, packed, session = _decode(bytes.fromhex(line))
            late += unpack(packed, self._shapes.get(number, []), turn=turn, session=session)
        return late

    def _ancestors(self, row: dict[str, Any] | None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while row is not None and row["parent"] is not None and len(found) < _MAX_ANCESTORS:
            parents = self.sessions("session = ?", (row["parent"],), limit=1)
            row = parents[0] if parents and parents[0] not in found else None
            if row is not None:
                found.insert(0, row)
        return found


def merge_sessions(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one session that several segments, or several gateways, have a part of, added up."""
    merged: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = merged.setdefault(row["session"], row)
        if known is row:
            continue
        newer, older = (row, known) if row["last_s"] > known["last_s"] else (known, row)
        both = {name: newer[name] if newer[name] is not None else older[name] for name in newer}
        both.update({name: newer[name] + older[name] for name in _SUMMED})
        both.update(started_s=min(newer["started_s"], older["started_s"]), ended_s=newer["ended_s"])
        merged[row["session"]] = both
    return list(merged.values())


_SUMMED: Final = ("turns", "troubles", "prompt_tokens", "cached_tokens", "output_tokens")
_LATE: Final = (
    "(SELECT group_concat(hex(told), char(10)) FROM (SELECT told FROM late WHERE late.turn = {} LIMIT {}))"
)
_AROUND: Final = f"""
  (SELECT group_concat(told, char(10)) FROM (
    SELECT json_array(turn, hex(told)) AS told FROM turns WHERE ended_s <= {{at}}
    ORDER BY ended_s DESC LIMIT {_NEIGHBOURS})),
  (SELECT group_concat(hex(told), char(10)) FROM (
    SELECT told FROM moments WHERE at_s <= {{at}} ORDER BY at_s DESC LIMIT {_MOMENTS}))
"""  # noqa: S608 - of constants
_BESIDE: Final = f"SELECT {_AROUND.format(at='?1')}"
_TURN: Final = f"""
WITH own AS (
  SELECT told, arrived_s + coalesce(queue_ms, 0) / 1000 + 1e-6 AS decided_s  -- a sum may fall short of a time
  FROM turns WHERE turn = ?1 ORDER BY number DESC LIMIT 1)
SELECT
  (SELECT hex(told) FROM own),
  {_LATE.format("?1", "?2")},
  {_AROUND.format(at="(SELECT decided_s FROM own)")}
"""  # noqa: S608 - of constants
_OF_A_SESSION: Final = f"""
SELECT json_array(turn, hex(told), {_LATE.format("turns.turn", "?4")}) AS told FROM turns
WHERE session = ?1 AND arrived_s < ?2 ORDER BY arrived_s DESC LIMIT ?3
"""  # noqa: S608 - of constants
_PICKED: Final = (
    "WITH RECURSIVE picked(at) AS (SELECT ? AS at UNION ALL SELECT at + ? FROM picked WHERE at + ? <= ?) "
    "SELECT json_array(queue_ms, first_ms, run_ms, outcome) AS told FROM picked "
    "JOIN turns ON turns.number = picked.at"
)
_FIELDS: Final = ", ".join(f"'{name}', {name}" for name in schema.OF_A_SESSION)


def _rows(
    connection: sqlite3.Connection, where: str, values: tuple[Any, ...], *, limit: int = MAX_KIN
) -> list[dict[str, Any]]:
    sql = f"SELECT json_object({_FIELDS}) AS told FROM sessions WHERE {where} ORDER BY last_s DESC LIMIT {limit:d}"  # noqa: S608, E501
    return [msgspec.json.decode(row) for row in _list(connection, sql, *values)]


def _span(connection: sqlite3.Connection, from_s: float, to_s: float) -> tuple[int, int]:
    """Between which numbers the turns are that ended then."""
    first = "SELECT number FROM turns WHERE ended_s >= ? ORDER BY ended_s, number LIMIT 1"
    last = "SELECT number FROM turns WHERE ended_s <= ? ORDER BY ended_s DESC, number DESC LIMIT 1"
    low, high = _one(connection, first, from_s), _one(connection, last, to_s)
    return (low, high) if low is not None and high is not None else (1, 0)


def _one(connection: sqlite3.Connection, sql: str, *values: Any) -> Any:
    """The one value of the first row, of a text what it says as JSON; None if there is no row."""
    row = connection.execute(sql, values).fetchone()
    if row is None or row[0] is None:
        return None
    return msgspec.json.decode(row[0]) if isinstance(row[0], str) else row[0]


def _list(connection: sqlite3.Connection, sql: str, *values: Any) -> list[str]:
    """The texts in the column `told`. None holds a line's end: they are JSON, or hexadecimal."""
    [told] = connection.execute(f"SELECT group_concat(told, char(10)) FROM ({sql})", values).fetchone()  # noqa: S608
    return told.split("\n") if told is not None else []
