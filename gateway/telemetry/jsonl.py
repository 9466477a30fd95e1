"""The information stream as a file: one JSON record a line.

Writing happens on a thread of its own, so a slow or full disk never holds up a request. What cannot be
written is dropped and counted; what is written is whole lines.
"""

import logging
import queue
import threading
from pathlib import Path
from typing import BinaryIO

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
        self.dropped = 0
        """Records that are not in the file, for want of room in memory or on the disk."""
        self._file: BinaryIO = self._path.open("ab")
        self._thread = threading.Thread(target=self._write_all, name="stream-file", daemon=True)
        self._thread.start()

    def append(self, record: Record) -> None:
        try:
            self._pending.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes what is pending, within the time, and closes the file."""
        try:
            self._pending.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _write_all(self) -> None:
        is_open = True
        while is_open:
            batch = [self._pending.get()]
            while len(batch) < 1000 and not self._pending.empty():
                batch.append(self._pending.get())
            is_open = None not in batch
            lines = b"".join(self._encoder.encode(r) + b"\n" for r in batch if r is not None)
            try:
                self._file = self._rotated(self._file)
                self._file.write(lines)
                self._file.flush()
            except OSError as error:
                if not self.dropped:
                    _log.error("the information stream cannot be written to %s: %s", self._path, error)
                self.dropped += len(batch)
        self._file.close()

    def _rotated(self, file: BinaryIO) -> BinaryIO:
        if file.tell() < self._max_bytes:
            return file
        file.close()
        self._path.replace(self._path.with_name(self._path.name + ".1"))
        return self._path.open("ab")
