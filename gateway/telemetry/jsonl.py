"""The information stream as a file: one JSON record a line.

Writing happens on a thread of its own, so a slow or full disk never holds up a request. What cannot be
written is dropped and counted; what is written is whole lines. A pipe is opened once somebody reads it: what
is to be written waits for that, as far as there is room, and nobody else does. Records are in the file after
a twentieth of a second: waking the thread for each would cost every request more than all that happens to it
here.

Files that it makes are for their owner alone.
"""

import contextlib
import errno
import io
import logging
import os
import stat
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

from gateway.config.telemetry import StreamFileConfig
from gateway.telemetry.log_lines import log_event

_FLUSH_PERIOD_S: Final = 0.05
_clock: Final = time.monotonic  # noqa: TID251 - for the log of a thread alone
_COMPLAINS_EVERY_S: Final = 60.0
# Without a failure, after which the next one is news.
_WELL_S: Final = 1.0
_LAST_TRIES: Final = 20
# So much of what was given is written at once.
_BATCH: Final = 256


class StreamFile:
    """Appends records. `extend` never blocks and never raises."""

    _name = "stream"

    def __init__(self, config: StreamFileConfig, *, is_new: bool = False) -> None:
        """`is_new`: whatever the file held is overwritten. Raises OSError if it cannot be opened."""
        assert config.path is not None
        self._path = Path(config.path)
        self._max_bytes = config.max_bytes
        self._max_pending = config.max_pending
        self._keep_files = config.keep_files
        self._pending: deque[tuple[bytes, int]] = deque()
        # Records; each is counted by one thread alone.
        self._taken = self._written = 0
        self._is_closing = threading.Event()
        self._crowded_out = 0
        self._unwritable = 0
        self.is_failing, self._failed_s, self._complained_s = False, float("-inf"), float("-inf")
        self._has_reader = True
        try:
            self._open(is_new=is_new)
        except OSError as error:
            if error.errno != errno.ENXIO or not self._path.is_fifo():
                raise
            self._has_reader = False
            self._complain(error)
        self._thread = threading.Thread(target=self._write_all, name="stream-file", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._crowded_out + self._unwritable

    def extend(self, lines: bytes, count: int) -> None:
        if self._taken - self._written + count <= self._max_pending:
            self._taken += count
            self._pending.append((lines, count))
        else:
            self._crowded_out += count

    def end(self) -> None:
        """Closes the file once what is pending is written; it does not wait for that."""
        self._is_closing.set()

    def close(self, timeout_s: float = 5.0) -> None:
        self._is_closing.set()
        self._thread.join(timeout_s)

    def _write_all(self) -> None:
        while not self._is_closing.wait(_FLUSH_PERIOD_S):
            self._write_pending()
        for _ in range(_LAST_TRIES):
            self._write_pending()
            if self._has_reader:
                self._file.close()
                return
            threading.Event().wait(_FLUSH_PERIOD_S)

    def _write_pending(self) -> None:
        if not self._has_reader:
            with contextlib.suppress(OSError):
                self._open()
                self._has_reader = True
        while self._pending and self._has_reader:
            batch = [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
            count = sum(each for _, each in batch)
            try:
                self._write(b"".join([lines for lines, _ in batch]))
                self.is_failing = False
            except OSError as error:
                self._complain(error)
                self._unwritable += count
            self._written += count

    def _complain(self, error: OSError) -> None:
        now = _clock()
        is_same = self.is_failing or now - self._failed_s < _WELL_S
        self.is_failing, self._failed_s = True, now
        if not is_same or now - self._complained_s >= _COMPLAINS_EVERY_S:
            self._complained_s = now
            cause = "nobody reads this pipe" if error.errno == errno.ENXIO else error
            log_event(logging.ERROR, f"{self._name}_unwritten", path=self._path, cause=cause)

    def _write(self, lines: bytes) -> None:
        if self._size >= self._max_bytes:
            self._rotate()
        rest = memoryview(lines)
        try:
            while rest:
                if (written := self._file.write(rest)) is None:
                    raise BlockingIOError("it takes no more for now")
                rest = rest[written:]
        except OSError:
            if done := len(lines) - len(rest):
                with contextlib.suppress(OSError):  # not everything that is written to can be shortened
                    self._file.truncate(os.fstat(self._file.fileno()).st_size - done)
            raise
        self._size += len(lines)

    def _rotate(self) -> None:
        for number in range(self._keep_files, 0, -1):
            newer = self._older(number - 1)
            if newer.exists():
                newer.replace(self._older(number))
        self._file.close()
        self._open()

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path

    def _open(self, *, is_new: bool = False) -> None:
        self._file = create_private(self._path, is_new=is_new)
        self._size = self._path.stat().st_size


def create_private(path: Path, *, is_new: bool = True) -> io.FileIO:
    """For appending, unbuffered: a buffer would try again to write what has been counted as dropped.
    `is_new`: what it held is overwritten, and who could read that cannot read this. A pipe that nobody reads
    is an error (ENXIO)."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
    file = os.open(path, flags | (os.O_TRUNC if is_new else 0), 0o600)
    os.set_blocking(file, True)
    if is_new and stat.S_ISREG(os.fstat(file).st_mode):
        os.fchmod(file, 0o600)
    return io.FileIO(file, "ab")
