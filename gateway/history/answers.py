"""Answers about what is over: one turn, one session, a stretch of time. Blocks: for one thread.

Each is made from indexes, of at most so many rows, within a time; what cannot be read of a row is left out.
"""

import contextlib
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.dashboard.explain import Evidence, Explanation, Pace, explanation_of, held_when_it_waited
from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.ids import ReplicaId, RequestId
from gateway.telemetry.ring import decode_record

_MAX_ROWS: Final = 500
_DAY_S: Final = 86_400.0
_DEADLINE_S: Final = 5.0
_STEPS: Final = 50_000  # of SQLite's machine between two looks at the clock
_SAMPLE: Final = 10_000  # turns: their p99 is within about a tenth of that of all
_DECIDES: Final = (rec.Routed, rec.Refused, rec.TurnWaited, rec.TurnLeft)
_ROW: Final = (
    "session, tenant, parent, source, confidence, schema, model, started_s, last_s, ended_s, end_reason, "
    "turns, troubles, prompt_tokens, cached_tokens, output_tokens"
)
_KIN: Final = f"""
WITH RECURSIVE up (session, parent, depth) AS (
  SELECT session, parent, 0 FROM sessions WHERE session = ?1 UNION ALL
  SELECT sessions.session, sessions.parent, depth + 1 FROM sessions JOIN up ON sessions.session = up.parent
  WHERE depth < 8)
SELECT * FROM (SELECT {_ROW} FROM sessions WHERE session IN (SELECT session FROM up WHERE depth > 0)
  ORDER BY started_s)
UNION ALL SELECT * FROM (SELECT {_ROW} FROM sessions WHERE parent = ?1 ORDER BY started_s LIMIT 100)
"""  # noqa: S608 - of constants
_TURNS: Final = """
SELECT turn, records FROM turns WHERE session = ?1 AND arrived_s < ?2 ORDER BY arrived_s DESC LIMIT ?3"""
_PACES: Final = """
SELECT replica, token_ms, rest_ms FROM (
  SELECT * FROM turns WHERE ended_s <= ?1 ORDER BY ended_s DESC LIMIT 200)
WHERE gateway = ?2 AND replica IS NOT NULL AND token_ms IS NOT NULL AND rest_ms IS NOT NULL"""
_decode_loads: Final = msgspec.json.Decoder(dict[ReplicaId, int]).decode


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time, and what of it is wanted."""

    from_s: float
    to_s: float
    tenant: str | None = None
    model: str | None = None
    session: str | None = None  # how its id begins
    trouble: bool = False  # only where a turn was refused, or did not come to its end
    limit: int = 100

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Look":
        given = {name: value for name, value in query.items() if name in cls.__struct_fields__ and value}
        to_s = _seconds(given, "to_s", time.time())
        times = {"to_s": to_s, "from_s": _seconds(given, "from_s", to_s - _DAY_S)}
        try:
            look = msgspec.convert({**given, **times}, cls, strict=False)
        except msgspec.ValidationError as error:
            what, _, where = str(error).rpartition(" - at `$.")
            raise ValueError(f"{where.removesuffix('`')}: {what}") from None
        if not 1 <= look.limit <= _MAX_ROWS:
            raise ValueError(f"limit: from 1 to {_MAX_ROWS}")
        return look


def _seconds(query: Mapping[str, str], name: str, default: float) -> float:
    """A time of day, as Unix counts them. Raises ValueError."""
    text = query.get(name) or repr(default)
    with contextlib.suppress(ValueError):
        if math.isfinite(seconds := float(text)) or not query.get(name):
            return seconds
    raise ValueError(f"{name}: a number of seconds since 1970, not {text[:40]!r}")


class Answers:
    """Each takes an id and a query. Raises ValueError if they are wrong, sqlite3.Error for lack of time."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA query_only = 1")
        self._db.set_progress_handler(lambda: time.monotonic() > self._until_s, _STEPS)
        self._until_s = math.inf
        self.close = self._db.close

    def encoded(self, answer: Callable[..., Any], *question: Any) -> bytes | None:
        """As JSON, within the time that one may take; None where nothing is known of it."""
        self._until_s = time.monotonic() + _DEADLINE_S
        found = answer(*question)
        return msgspec.json.encode(found) if found is not None else None

    def turn(self, turn: str, _: Mapping[str, str]) -> Explanation | None:
        """As from memory, but for how quick replicas were: that is taken from turns that were over when this
        one was decided."""
        row = next(self._rows("SELECT gateway, loads, records FROM turns WHERE turn = ?", turn), None)
        if row is None or not (records := _records(row["records"])):
            return None
        at_s = max((each.at_s for each in records if isinstance(each, _DECIDES)), default=None)
        loads: dict[ReplicaId, int] = {}
        with contextlib.suppress(msgspec.MsgspecError):
            loads = _decode_loads(row["loads"] or "{}")
        paces: dict[ReplicaId, Pace] = {}
        for replica, *pace in self._rows(_PACES, at_s, row["gateway"]):
            paces.setdefault(replica, Pace(*pace))
        sql = "SELECT record FROM windows WHERE at_s <= ? AND gateway = ? ORDER BY at_s DESC LIMIT 1"
        moved = [each for [text] in self._rows(sql, at_s, row["gateway"]) for each in _records(text)]
        window = next((each for each in moved if isinstance(each, WindowUpdated)), None)
        own = [each for each in records if hasattr(each, "turn")]
        held = held_when_it_waited(records)
        return explanation_of(Evidence(RequestId(turn), own, loads, paces, window, held, {}))

    def session(self, session: str, query: Mapping[str, str]) -> dict[str, Any] | None:
        """Its newest turns, or those that arrived before `before_s`; and its kin."""
        before_s = _seconds(query, "before_s", math.inf)
        found = list(self._rows(_TURNS, session, before_s, _MAX_ROWS + 1))
        own = next(self._rows(f"SELECT {_ROW} FROM sessions WHERE session = ?", session), None)  # noqa: S608
        if own is None and not found:
            return None
        turns = [{"turn": turn, "records": _records(text)} for turn, text in reversed(found[:_MAX_ROWS])]
        return {
            "session": dict(own) if own is not None else None,
            "kin": [dict(row) for row in self._rows(_KIN, session)],
            "turns": [turn for turn in turns if turn["records"]],
            "is_cut": len(found) > _MAX_ROWS,
        }

    def look(self, _: str | None, query: Mapping[str, str]) -> dict[str, Any]:
        look, wanted = Look.of(query), ""
        values: list[Any] = []
        for name, value in (("tenant", look.tenant), ("model", look.model)):
            if value is not None:
                wanted, values = f"{wanted} AND {name} = ?", [*values, value]
        if look.session is not None:
            wanted += " AND session >= ? AND session < ?"
            values += [look.session, f"{look.session}\U0010ffff"]
        trouble = ("AND troubles > 0", "AND outcome <> 'finished'") if look.trouble else ("", "")
        span = (look.from_s, look.to_s)
        sql = f"SELECT {_ROW} FROM sessions WHERE last_s >= ? AND started_s <= ? {wanted} {trouble[0]}"  # noqa: S608
        sessions = list(self._rows(f"{sql} ORDER BY last_s DESC LIMIT ?", *span, *values, look.limit))
        ended = "FROM turns WHERE ended_s BETWEEN ? AND ? AND outcome IS NOT NULL"
        [turns] = next(self._rows(f"SELECT count(*) {ended}", *span))
        sql = f"SELECT outcome, queue_ms, first_token_ms, run_ms {ended} AND rowid % ? = 0 {wanted}"
        chosen = (max(1, turns // _SAMPLE), *values, 2 * _SAMPLE)
        sample = list(self._rows(f"{sql} {trouble[1]} LIMIT ?", *span, *chosen))
        return {
            "from_s": look.from_s,
            "to_s": look.to_s,
            "since_s": next(self._rows("SELECT min(ended_s) FROM turns"))[0],
            "turns": turns,
            "sample": len(sample),
            "outcomes": Counter(row["outcome"] for row in sample),
            "percentiles": {
                name: _percentiles([row[name] for row in sample if row[name] is not None])
                for name in ("queue_ms", "first_token_ms", "run_ms")
            },
            "sessions": [dict(row) for row in sessions],
        }

    def _rows(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return self._db.execute(sql, values)


def _records(text: str) -> list[rec.Record]:
    found = []
    for line in text.split("\n"):
        with contextlib.suppress(msgspec.DecodeError, UnicodeEncodeError):
            found.append(decode_record(line))
    return sorted(found, key=lambda record: record.at_s)


def _percentiles(values: list[float]) -> dict[str, float | None]:
    values.sort()
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {
        name: values[math.ceil(share * len(values)) - 1] if values else None for name, share in shares.items()
    }
