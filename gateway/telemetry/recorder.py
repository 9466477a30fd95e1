"""Records the events and commands of a running gateway's brain (`event_log.py` has the format).

The brain gets each event as the log has it, so that a replay cannot differ for what the log leaves out.
A recording that would have a hole ends instead, with a log line.

What keyed its hashes is kept beside it, in a file of its own, only where a replay needs it: where other
gateways hash alike.
"""

import logging
import secrets
from pathlib import Path
from typing import Final

from gateway import __version__
from gateway.config import Config
from gateway.config.telemetry import StreamFileConfig
from gateway.core.commands import Command
from gateway.core.events import Event
from gateway.telemetry.event_log import (
    as_recorded,
    decode_event,
    encode_beginning,
    encode_entry,
    encode_event,
)
from gateway.telemetry.jsonl import StreamFile, create_private
from gateway.telemetry.log_lines import log_event
from gateway.wire.hashing import hash_secret, key_hashes

KEY_SUFFIX: Final = ".key"


class Recorder:
    def __init__(self, config: Config) -> None:
        """Raises OSError if the file cannot be opened."""
        recording = config.recording
        assert recording.path is not None
        if (secret := hash_secret()) is None:
            secret = secrets.token_bytes(32)
            key_hashes(secret)
        needs_key = config.shared.url is not None
        key = Path(recording.path + KEY_SUFFIX)
        key.unlink(missing_ok=True)
        if needs_key:
            with create_private(key) as file:
                file.write(secret.hex().encode())
        self._left = recording.max_bytes
        self._file = StreamFile(
            StreamFileConfig(
                path=recording.path,
                max_bytes=2 * recording.max_bytes,  # it ends before it would be moved
                max_pending=recording.max_pending,
            ),
            is_new=True,
        )
        self._is_over = False
        self._event = b""
        self._write(encode_beginning(config, version=__version__, needs_key=needs_key))

    def record_event(self, event: Event) -> Event:
        """The event as the log has it: the brain must get this one."""
        if self._is_over:
            return event
        try:
            self._event = encode_event(event)
            return as_recorded(decode_event(self._event), event)
        except (ValueError, TypeError, NotImplementedError) as error:  # no request fails for its recording
            self._end(f"an event cannot be written: {error}")
            return event

    def answered(self, commands: list[Command], *, now: float) -> None:
        if not self._is_over:
            self._write(encode_entry(now, self._event, commands))

    def close(self) -> None:
        self._file.close()

    def _write(self, line: bytes) -> None:
        self._left -= len(line) + 1
        if self._left < 0:
            self._end("it is as large as it may be")
            return
        self._file.extend(line + b"\n", 1)
        if self._file.dropped:
            self._end("not all of it could be written")

    def _end(self, why: str) -> None:
        self._is_over = True
        self._file.end()
        log_event(logging.WARNING, "recording_ended", cause=why)
