"""The information stream as a file: one JSON record a line.

Writing happens on a thread of its own, so a slow or full disk never holds up a request. What cannot be
written is dropped and counted; what is written is whole lines.
"""

import contextlib
import logging
import queue
import threading
from pathlib import Path

import msgspec

from gateway.config.stream import StreamFileConfig
from gateway.domain.records import Record

_log = logging.getLogger(__name__)


class StreamFile:
    """Appends records. `append` never blocks and never raises."""

    def __init__(self, config: StreamFileConfig) -> None:
        """Raises OSError if the file cannot be opened."""
        assert config.path is not None
        self._path = Path(config.path)
        self._max_bytes = config.max_bytes
        self._pending: queue.Queue[Record | None] = queue.Queue(config.max_pending)
        self._encoder = msgspec.json.Encoder()
        self._crowded_out = 0
        self._unwritable = 0
        self._open()
        self._thread = threading.Thread(target=self._write_all, name="stream-file", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Records that are not in the file, for want of room in memory or on the disk."""
        return self._crowded_out + self._unwritable

    def append(self, record: Record) -> None:
        try:
            self._pending.put_nowait(record)
        except queue.Full:
            self._crowded_out += 1

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes what is pending, within the time, and closes the file."""
        try:
            self._pending.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    # --- on the thread ---------------------------------------------------------------------------

    def _write_all(self) -> None:
        is_open = True
        while is_open:
            batch = [self._pending.get()]
            while len(batch) < 1000 and not self._pending.empty():
                batch.append(self._pending.get())
            is_open = None not in batch
            lines = [self._encoder.encode(record) + b"\n" for record in batch if record is not None]
            try:
                self._write(b"".join(lines))
            except OSError as error:
                if not self._unwritable:
                    _log.error("the information stream cannot be written to %s: %s", self._path, error)
                self._unwritable += len(lines)
        self._file.close()

    def _write(self, lines: bytes) -> None:
        """All of it or nothing."""
        if self._size >= self._max_bytes:
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file.close()
            self._open()
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):  # not everything that is written to can be shortened
                self._file.truncate(self._size)
            raise
        self._size += len(lines)

    def _open(self) -> None:
        # Unbuffered: a buffer would try again to write what has been counted as dropped.
        self._file = self._path.open("ab", buffering=0)
        self._size = self._path.stat().st_size
