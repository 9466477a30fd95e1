"""How records get into the tables, and out of them. Blocks: for one thread.

`schema.sql` makes the tables; `merge.sql` has what a record changes there.
Invariants: a batch and the position behind it are one transaction, so no record is lost or stored twice
whenever a process dies; a record that cannot be read or stored is counted and left out; rows are deleted some
hundred at a time; a file that is not ours is never changed.
"""

import fcntl
import os
import sqlite3
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from gateway.domain.records import Expected
from gateway.domain.request import Usage
from gateway.telemetry.ring import decode_record

_APPLICATION: Final = 0x54504B48
_VERSION: Final = 1
_ROWS_AT_ONCE: Final = 500
_FULL_SHARE: Final = 0.95
# Bytes of a record that is kept whole; clients choose how many tools it names, and their length.
_MAX_LINE: Final = 16_384
_BAD_ROW: Final = (
    *(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError),
    *(OverflowError, UnicodeError, msgspec.DecodeError),
)
_NOTHING: Final[dict[str, Any]] = dict.fromkeys((*Expected.__struct_fields__, *Usage.__struct_fields__))
_SQL: Final = resources.files("gateway.history")


def _statements() -> dict[str, list[str]]:
    found = {}
    for part in (_SQL / "merge.sql").read_text().split("\n-- on ")[1:]:
        head, _, body = part.partition("\n")
        for kind in head.partition(":")[0].split(", "):
            found[kind] = [each for each in body.split(";\n") if each.strip()]
    return found


_STATEMENTS: Final = _statements()


class Batch(NamedTuple):
    """What a source has next."""

    lines: list[bytes]
    position: str  # behind them, in the source's own words
    gaps: int = 0  # notices of records that it has no more
    begins: bool = False  # its gateway was started anew: nothing runs


class Store:
    def __init__(self, path: Path, *, max_bytes: int, max_age_s: float) -> None:
        """Raises ValueError for a file that is not ours, is in use, or has no place; OSError or sqlite3.Error
        for one that cannot be opened."""
        self._max_bytes, self._max_age_s = max_bytes, max_age_s
        try:
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ValueError(f"{path}: neither it nor its lock can be written: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{path}: another `turnpike history` writes it") from None
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            is_ours = self._prepare()
        except sqlite3.DatabaseError as error:
            is_ours = False
            if isinstance(error, sqlite3.OperationalError):
                raise
        if not is_ours:
            self.close()
            raise ValueError(
                f"{path}: this is no history of this version; move it away, or name another file"
            )
        path.chmod(0o600)

    def position(self, gateway: str) -> str:
        row = self._db.execute("SELECT position FROM gateways WHERE gateway = ?", (gateway,)).fetchone()
        return row[0] if row is not None else ""

    def write(self, gateway: str, batch: Batch) -> None:
        """All of it or nothing. Raises sqlite3.Error."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            if batch.begins:
                self._db.execute("DELETE FROM replicas WHERE gateway = ?", (gateway,))
            unreadable = 0
            for line in batch.lines:
                try:
                    self._merge(gateway, line)
                except _BAD_ROW:
                    unreadable += 1
            self._db.execute(
                "INSERT INTO gateways VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "position = excluded.position, records = records + excluded.records, "
                "unreadable = unreadable + excluded.unreadable, gaps = gaps + excluded.gaps",
                (gateway, batch.position, len(batch.lines), unreadable, batch.gaps),
            )

    def prune(self, *, now: float) -> bool:
        """Deletes some of what is too old, or of the oldest where there is too much. Whether there may be
        more to do. Raises sqlite3.Error."""
        pages, free, size = (self._pragma(name) for name in ("page_count", "freelist_count", "page_size"))
        until_s = now - self._max_age_s
        if (pages - free) * size > _FULL_SHARE * self._max_bytes:
            oldest = "SELECT ended_s FROM turns ORDER BY ended_s LIMIT 1 OFFSET ?"
            row = self._db.execute(oldest, (_ROWS_AT_ONCE,)).fetchone()
            until_s = max(until_s, row[0] if row is not None else now)
        elif free > pages // 4:  # the file was allowed to be larger
            self._db.execute(f"PRAGMA incremental_vacuum({_ROWS_AT_ONCE})").fetchall()
        deleted = 0
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for table, at in (("turns", "ended_s"), ("sessions", "last_s"), ("windows", "at_s")):
                some = f"SELECT rowid FROM {table} WHERE {at} <= ? ORDER BY {at} LIMIT {_ROWS_AT_ONCE}"  # noqa: S608
                sql = f"DELETE FROM {table} WHERE rowid IN ({some})"  # noqa: S608
                deleted += self._db.execute(sql, (until_s,)).rowcount
        return deleted > 0

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def _prepare(self) -> bool:
        if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._db.execute("PRAGMA journal_mode = WAL")
            marks = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_VERSION};"
            self._db.executescript(f"BEGIN; {marks} {(_SQL / 'schema.sql').read_text()} COMMIT")
        if (self._pragma("application_id"), self._pragma("user_version")) != (_APPLICATION, _VERSION):
            return False
        self._db.execute("PRAGMA synchronous = NORMAL")  # a crash of the machine costs the last seconds
        self._db.execute("PRAGMA journal_size_limit = 8388608")
        return True

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _merge(self, gateway: str, line: bytes) -> None:
        fields = _NOTHING | msgspec.to_builtins(decode_record(line)) | {"gateway": gateway}
        for inner in ("expected", "usage"):
            fields |= fields.get(inner) or {}
        fields["line"] = f"{line.decode()}\n" if len(line) <= _MAX_LINE else ""
        for sql in (*(_STATEMENTS["turn"] if "turn" in fields else ()), *_STATEMENTS.get(fields["type"], ())):
            self._db.execute(sql, fields)
