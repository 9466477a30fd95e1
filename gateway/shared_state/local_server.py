"""Serves a store in memory to the other processes of this machine, over a Unix socket.

Only this user reaches it: the socket has mode 0600, in a directory of mode 0700 that holds nothing else.
"""

import asyncio
import contextlib
import os
import socket
import stat
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.shared_state import frames
from gateway.shared_state.frames import HELLO, FrameError
from gateway.shared_state.memory import MAX_ENTRIES, Tables

MAX_CONNECTIONS: Final = 256
ANSWERS_BYTES: Final = 1 << 18
"""Answers that are written together, about."""


class LocalServer:
    def __init__(self, path: str, clock: Callable[[], float], *, max_entries: int = MAX_ENTRIES) -> None:
        """`clock`: seconds that never go back, best not over a restart of this server either."""
        self.tables = Tables(clock, max_entries=max_entries)
        self._path = Path(path)
        self._connections: set[_Connection] = set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Raises OSError where the socket cannot be had: another server has it, or others may reach it."""
        _own_directory(self._path.parent)
        _remove_stale(self._path)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(os.fspath(self._path))
        self._path.chmod(0o600)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: _Connection(self.tables, self._connections), sock=listening, backlog=MAX_CONNECTIONS
        )

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
            for connection in tuple(self._connections):
                connection.close()
            await self._server.wait_closed()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()


def _own_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(f"{directory}: must belong to this user, and be closed to others (mode 0700)")


def _remove_stale(path: Path) -> None:
    """The socket of a server that is gone."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise FileExistsError(f"{path}: another server listens there")


class _Connection(asyncio.Protocol):
    def __init__(self, tables: Tables, connections: "set[_Connection]") -> None:
        self._tables = tables
        self._connections = connections
        self._transport: Any = None
        self._hello = b""
        self._reader = frames.Reader()
        self._asked: deque[bytes] = deque()
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if len(self._connections) >= MAX_CONNECTIONS:
            self._transport.abort()
            return
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)

    def close(self) -> None:
        self._transport.abort()

    # Of a client that does not read its answers, no more is read or answered.

    def pause_writing(self) -> None:
        self._is_paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._transport.resume_reading()
        self._serve()

    def data_received(self, data: bytes) -> None:
        if len(self._hello) < len(HELLO):
            missing = len(HELLO) - len(self._hello)
            self._hello += data[:missing]
            data = data[missing:]
            if not HELLO.startswith(self._hello):
                self._transport.abort()
                return
        try:
            self._asked.extend(self._reader.feed(data))
        except FrameError:
            self._transport.abort()
            return
        self._serve()

    def _serve(self) -> None:
        while self._asked and not self._is_paused:
            answers, size = [], 0
            while self._asked and size < ANSWERS_BYTES:
                try:
                    answers.append(frames.framed(self._answer(self._asked.popleft())))
                except msgspec.DecodeError:
                    self._transport.abort()
                    return
                size += len(answers[-1])
            self._transport.write(b"".join(answers))

    def _answer(self, frame: bytes) -> bytes:
        try:
            body = _encode(self._do(_decoder.decode(frame)))
            if len(body) >= frames.MAX_FRAME_BYTES:
                raise ValueError(f"an answer of {len(body)} bytes")
        except ValueError as error:
            if isinstance(error, msgspec.DecodeError):
                raise
            return bytes([frames.REFUSED]) + _encode(str(error))
        return bytes([frames.OK]) + body

    def _do(self, request: frames.Request) -> Any:
        tables = self._tables
        match request:
            case frames.Find(keys):
                return tables.find(keys)
            case frames.Claim(key, value, ttl_s):
                return tables.claim(key, value, ttl_s)
            case frames.Exchange(origin, gauges, ttl_s):
                return tables.exchange(origin, gauges, ttl_s)
            case frames.Add(key, more, least, ttl_s):
                return tables.add(key, more, least, ttl_s)
            case frames.WriteAll(entries):
                return tables.write(entries)
            case frames.Ping():
                pass
        return None


_encode = msgspec.msgpack.encode
_decoder: msgspec.msgpack.Decoder[frames.Request] = msgspec.msgpack.Decoder(frames.Request)
