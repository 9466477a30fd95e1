"""Where stored state lives, kept in a file so that it outlasts the process: the server's side of it.

A line holds the hash of a tenant and an id, and the replica that has the state; neither tenants nor ids can
be read from it. Lines are appended within a second, on a thread. A process that is killed loses the last
second's.

Invariants: a line that is not whole is ignored (a torn one could name another replica); the file holds at
most twice as many lines as ids are remembered; only its owner may read it.
"""

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

from gateway.config import Config
from gateway.domain.ids import ReplicaId
from gateway.routing.state_residence import StateKey, StateResidence
from gateway.telemetry.log_lines import log_event

_log = logging.getLogger(__name__)
_PERIOD_S: Final = 1.0
_LINE: Final = re.compile(rb"([0-9a-f]{64}) ([A-Za-z0-9_.-]{1,128})\n")
# Lines that wait while the disk is slow or full; what comes then is forgotten at the next start.
_MAX_PENDING: Final = 100_000


class StateFile:
    def __init__(self, path: str, residence: StateResidence, *, max_ids: int) -> None:
        """Tells `residence` what earlier processes knew. Raises OSError if the file cannot be read or
        written."""
        self._path = Path(path)
        self._residence = residence
        self._max_lines = 2 * max_ids
        self._pending: list[bytes] = []
        residence.restore(_read(self._path))
        self._lines = 0
        self._write_anew(residence.homes())
        residence.on_learned = self._learned

    @classmethod
    def of(cls, config: Config, residence: StateResidence) -> "StateFile | None":
        if (path := config.server.state_path) is None:
            if config.tenants:
                notice = "server.state_path is not set: stored responses will be unknown after a restart"
                log_event(logging.INFO, "state_not_kept", notice)
            return None
        return cls(path, residence, max_ids=config.state.max_state_ids)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self.flush()

    async def flush(self) -> None:
        """Writes what was learned, on a thread. Raises OSError, and tries again the next time."""
        if self._lines + len(self._pending) > self._max_lines:
            self._pending.clear()
            await asyncio.to_thread(self._write_anew, self._residence.homes())
        elif self._pending:
            lines = tuple(self._pending)
            await asyncio.to_thread(self._append, b"".join(lines))
            del self._pending[: len(lines)]
            self._lines += len(lines)

    async def close(self) -> None:
        self._residence.on_learned = None
        try:
            await self.flush()
        except OSError:
            _log.exception("where the last stored responses live was not written")

    def _learned(self, key: StateKey, replica: ReplicaId) -> None:
        if len(self._pending) < _MAX_PENDING:
            self._pending.append(_line(key, replica))

    def _append(self, lines: bytes) -> None:
        with _open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
            size = file.tell()
            try:
                file.write(lines)
                file.flush()
            except OSError:
                with contextlib.suppress(OSError):
                    os.truncate(self._path, size)  # else what comes next would stand behind half a line
                raise

    def _write_anew(self, homes: list[tuple[StateKey, ReplicaId]]) -> None:
        write_anew(self._path, (_line(*home) for home in homes))
        self._lines = len(homes)


def write_anew(path: Path, lines: Iterable[bytes]) -> None:
    """In one step: whoever reads meets the old file or the new one, whole. Only its owner may read it."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    with _open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
        if os.geteuid() == 0 and path.exists():  # what root writes stays the gateway's own
            os.fchown(file.fileno(), path.stat().st_uid, path.stat().st_gid)
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _read(path: Path) -> list[tuple[StateKey, ReplicaId]]:
    found = []
    with contextlib.suppress(FileNotFoundError), path.open("rb") as lines:
        while line := lines.readline(256):
            if (match := _LINE.fullmatch(line)) is not None:
                found.append((StateKey(bytes.fromhex(match[1].decode())), ReplicaId(match[2].decode())))
    return found


def _line(key: StateKey, replica: ReplicaId) -> bytes:
    return f"{key.hex()} {replica}\n".encode("ascii")


def _open(path: Path, flags: int) -> BinaryIO:
    return os.fdopen(os.open(path, flags, 0o600), "ab" if flags & os.O_APPEND else "wb")
