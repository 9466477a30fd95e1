"""The tables of a segment, and how rows get in there.

Rows are written many in one statement: each statement gives up the interpreter's lock, and to get it back
from a busy event loop takes milliseconds.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

from msgspec.structs import astuple

from gateway.history.fold import Finished, SessionRow, TurnRow

VERSION: Final = 1
"""Of the schema. Segments of another version are not read; they go when they are old."""
_AT_ONCE: Final = 64
"""Rows in one statement; it has at most some thousand parameters."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS shapes (number INTEGER PRIMARY KEY, shape TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS turns (
  number INTEGER PRIMARY KEY, turn TEXT NOT NULL, session TEXT, tenant TEXT, model TEXT, replica TEXT,
  arrived_s REAL NOT NULL, ended_s REAL NOT NULL, queue_ms REAL, first_ms REAL, run_ms REAL, outcome TEXT,
  told BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS turns_by_id ON turns (turn);
CREATE INDEX IF NOT EXISTS turns_by_session ON turns (session);
CREATE INDEX IF NOT EXISTS turns_by_end ON turns (ended_s);
CREATE TABLE IF NOT EXISTS sessions (
  session TEXT PRIMARY KEY, tenant TEXT, parent TEXT, source TEXT, confidence REAL, schema TEXT, model TEXT,
  started_s REAL NOT NULL, last_s REAL NOT NULL, ended_s REAL, end_reason TEXT, turns INTEGER NOT NULL,
  troubles INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sessions_by_last ON sessions (last_s);
CREATE INDEX IF NOT EXISTS sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;
CREATE TABLE IF NOT EXISTS moments (at_s REAL NOT NULL, told BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS moments_by_time ON moments (at_s);
CREATE TABLE IF NOT EXISTS late (turn TEXT NOT NULL, told BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS late_by_turn ON late (turn);
"""
_OF_A_TURN: Final = TurnRow._fields
OF_A_SESSION: Final = SessionRow.__struct_fields__
_MERGED: Final = """ ON CONFLICT (session) DO UPDATE SET
  tenant = coalesce(excluded.tenant, tenant), parent = coalesce(excluded.parent, parent),
  source = coalesce(excluded.source, source), confidence = coalesce(excluded.confidence, confidence),
  schema = coalesce(excluded.schema, schema), model = coalesce(excluded.model, model),
  started_s = min(excluded.started_s, started_s), last_s = max(excluded.last_s, last_s),
  ended_s = CASE WHEN excluded.turns > 0 THEN excluded.ended_s ELSE coalesce(excluded.ended_s, ended_s) END,
  end_reason = coalesce(excluded.end_reason, end_reason),
  turns = turns + excluded.turns, troubles = troubles + excluded.troubles,
  prompt_tokens = prompt_tokens + excluded.prompt_tokens,
  cached_tokens = cached_tokens + excluded.cached_tokens,
  output_tokens = output_tokens + excluded.output_tokens"""


def is_ours(connection: sqlite3.Connection) -> bool:
    """New, or of this version. Raises sqlite3.Error."""
    return connection.execute("PRAGMA user_version").fetchone()[0] in (0, VERSION)


def prepare(connection: sqlite3.Connection, shape_number: int, shape: str) -> None:
    """Makes what is not there. Raises sqlite3.Error."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # a crash of the machine costs the last seconds
    connection.execute("PRAGMA wal_autocheckpoint = 256")  # pages: 2 MiB
    connection.execute("PRAGMA journal_size_limit = 2097152")
    connection.executescript(_TABLES)
    connection.execute("INSERT OR IGNORE INTO shapes VALUES (?, ?)", (shape_number, shape))
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.commit()


def write(connection: sqlite3.Connection, rows: Finished) -> None:
    """All of it or nothing. Raises sqlite3.Error."""
    with connection:  # a transaction
        connection.execute("BEGIN")
        _insert(connection, "turns", _OF_A_TURN, rows.turns)
        _insert(connection, "sessions", OF_A_SESSION, list(map(astuple, rows.sessions)), _MERGED)
        _insert(connection, "moments", ("at_s", "told"), rows.moments)
        _insert(connection, "late", ("turn", "told"), rows.late)


def _insert(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    rows: Sequence[Iterable[Any]],
    conflict: str = "",
) -> None:
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        connection.execute(
            _statement(table, tuple(columns), len(some), conflict), list(chain.from_iterable(some))
        )


@cache
def _statement(table: str, columns: tuple[str, ...], rows: int, conflict: str) -> str:
    places = f"({', '.join('?' * len(columns))})"
    names = ", ".join(columns)
    return f"INSERT INTO {table} ({names}) VALUES {', '.join([places] * rows)}{conflict}"  # noqa: S608
