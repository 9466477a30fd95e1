"""The one thread that writes.

It folds what it is given a few hundred records at a time and lets go of the interpreter in between, so that
requests go on; what takes time on the disk happens without the interpreter.

Invariants: `take` never blocks and never raises; what waits is bounded, and what there is no room for is
dropped and counted; whatever goes wrong with the disk is said once, tried again after a while, and said to be
over when it is.
"""

import contextlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from gateway.config.history import HistoryConfig
from gateway.domain.ids import ReplicaId
from gateway.domain.records import Record
from gateway.history import schema
from gateway.history.fold import SHAPE_NUMBER, Finished, Fold
from gateway.history.packing import SHAPE
from gateway.history.segments import Segment, Segments

_log: Final = logging.getLogger(__name__)
_PERIOD_S: Final = 1.0
_SESSIONS_EVERY: Final = 5
"""Periods. A session's row is changed that often, however many turns it has meanwhile."""
_PRUNE_EVERY: Final = 10
_AT_ONCE: Final = 1024
"""Records that are folded before requests may go on: about a millisecond's work. To stop and go on takes a
tenth of that."""
_BREATH_S: Final = 0.0005
_BUSY_S: Final = 1.0
"""How long a lock that somebody else has on the file is waited for."""
_BACKOFF: Final = (1, 2, 5, 10, 30)
"""Periods."""
_MAX_UNWRITTEN_BYTES: Final = 32 << 20
"""Of turns that wait for the disk."""
_IN_A_TRANSACTION: Final = 2500
"""Turns, of a busy second; one and a half megabytes. A transaction writes each page of an index once, so a
thousand turns at a time cost an eighth more. In between it is seen whether the segment is full."""
_PAGE_BYTES: Final = 8192
"""Rows of about 500 bytes: half the time and a tenth less room than with SQLite's 4096."""
DAMAGE: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


class Writer:
    def __init__(self, config: HistoryConfig, *, clock: Callable[[], float]) -> None:
        """`clock`: Unix time. Nothing is opened before the thread runs."""
        assert config.path is not None
        self.segments = Segments(
            Path(config.path), max_bytes=config.max_mb << 20, max_age_s=config.max_age_h * 3600
        )
        self.fold = Fold()
        self.written = 0
        """Turns."""
        self.bytes = 0
        """On the disk, when it was looked at last."""
        self.failures = 0
        """Attempts to write that failed."""
        self.trouble: str | None = None
        """Why nothing can be written for now."""
        self._clock = clock
        self._max_pending = config.max_pending
        self._pending: deque[tuple[list[Record], Mapping[ReplicaId, int]]] = deque()
        self._taken = self._folded = self._crowded_out = self._unwritable = 0
        """Records, and turns; each is counted by one thread alone."""
        self._unwritten: deque[Finished] = deque()
        self._segment: Segment | None = None
        self._connection: sqlite3.Connection | None = None
        self._in_a_row = self._pause = 0
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Records that there was no room for in memory, and turns that there was none for on the disk."""
        return self._crowded_out + self._unwritable

    def take(self, records: list[Record], running: Mapping[ReplicaId, int]) -> None:
        """Keeps the list. `running`: how many turns each replica that is up runs after these records."""
        if self._taken - self._folded + len(records) <= self._max_pending:
            self._taken += len(records)
            self._pending.append((records, running))
        else:
            self._crowded_out += len(records)

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes what there is, within the time."""
        self._is_closing.set()
        self._thread.join(timeout_s)

    # --- on the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        period = 0
        while not self._is_closing.wait(_PERIOD_S):
            period += 1
            self._go_on(with_sessions=period % _SESSIONS_EVERY == 0, prunes=period % _PRUNE_EVERY == 1)
        self._pause = 0
        self._go_on(everything=True)
        self._forget_file()
        self.segments.close()

    def _go_on(self, *, with_sessions: bool = True, prunes: bool = False, everything: bool = False) -> None:
        try:
            self._fold_pending()
            finished = self.fold.finished(with_sessions=with_sessions, everything=everything)
            if any(finished):
                self._unwritten += finished.parts(_IN_A_TRANSACTION)
        except Exception:  # noqa: BLE001 - a bug of ours costs these records, not the thread
            _log.exception("a part of the history is lost, and it goes on")
            self.fold = Fold()
        if self._pause > 0:
            self._pause -= 1
        else:
            self._write_all(prunes=prunes)
        self._bound_unwritten()

    def _fold_pending(self) -> None:
        since = 0
        while self._pending:
            records, running = self._pending.popleft()
            for start in range(0, len(records), _AT_ONCE):
                some = records[start : start + _AT_ONCE]
                self.fold.take(some, running)
                since += len(some)
                if since >= _AT_ONCE and not self._is_closing.is_set():
                    since = 0
                    self._is_closing.wait(_BREATH_S)
            self._folded += len(records)

    def _write_all(self, *, prunes: bool) -> None:
        try:
            self.segments.open()
            while self._unwritten:
                rows = self._unwritten[0]
                schema.write(self._open(), rows)
                self._unwritten.popleft()
                self.written += len(rows.turns)
            if prunes:
                if self._segment is not None:
                    self._open()  # another one, if this is old, so that it can go when it is too old
                self.bytes = self.segments.prune(now=self._clock())
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
        else:
            if self.trouble is not None:
                _log.warning("history is written again")
            self.trouble, self._in_a_row = None, 0

    def _open(self) -> sqlite3.Connection:
        now = self._clock()
        if self._segment is not None and self.segments.is_full(self._segment, now=now):
            self._forget_file()
        if self._connection is None:
            connection = self._connect(self.segments.current(now=now))
            if not schema.is_ours(connection):
                connection = self._connect(self.segments.begin(now=now))
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            schema.prepare(connection, SHAPE_NUMBER, msgspec.json.encode(SHAPE).decode())
            self.bytes = self.segments.prune(now=now)
            return connection
        return self._connection

    def _connect(self, segment: Segment) -> sqlite3.Connection:
        self._forget_file()
        self._segment = segment
        self._connection = sqlite3.connect(
            segment.path, timeout=_BUSY_S, isolation_level=None, cached_statements=512
        )
        return self._connection

    def _failed(self, error: sqlite3.Error | OSError) -> None:
        self.failures += 1
        segment = self._segment
        self._forget_file()
        if segment is not None and getattr(error, "sqlite_errorname", None) in DAMAGE:
            _log.error("%s is damaged (%s): it is set aside, and another one begun", segment.path.name, error)
            with contextlib.suppress(OSError):
                self.segments.set_aside(segment)
            return  # the next period writes what this one could not
        if self.trouble is None:
            _log.error("history cannot be written to %s for now: %s", self.segments.path, error)
        self.trouble = str(error)
        self._pause = _BACKOFF[min(self._in_a_row, len(_BACKOFF) - 1)]
        self._in_a_row += 1

    def _forget_file(self) -> None:
        connection, self._connection, self._segment = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _bound_unwritten(self) -> None:
        turns = sum(len(each.turns) for each in self._unwritten)
        told = sum(len(row.told) for each in self._unwritten for row in each.turns)
        while self._unwritten and (turns > self._max_pending or told > _MAX_UNWRITTEN_BYTES):
            gone = self._unwritten.popleft()
            turns -= len(gone.turns)
            told -= sum(len(row.told) for row in gone.turns)
            self._unwritable += len(gone.turns)
