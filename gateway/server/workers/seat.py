"""A worker's place, as its parent gives it: sockets to accept from, and a line to the parent.

The parent sends the settings, then one order after the other. When it is gone, the line ends. At its own end
the worker sends its last metrics back.
"""

import asyncio
import glob
import shutil
import socket
import struct
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final, Self

import msgspec

from gateway.config import Config

_LENGTH: Final = struct.Struct("!I")


ACTED: Final = b"acted "
"""Before what is to be recorded, on a line of its own between the orders."""


class Order(Enum):
    ACCEPT = b"accept\n"
    HAND_OVER = b"hand over\n"
    NONE = b""
    """The parent is gone."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told on its command line."""

    number: int
    """At any time one process has it; the next one may have it again."""
    control_path: str
    line: int
    """A descriptor; so are those below."""
    sockets: tuple[int, ...]

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()


class Seat:
    """The worker's end."""

    def __init__(self, place: Place) -> None:
        self.number = place.number
        self.control_path = place.control_path
        self.sockets = [socket.socket(fileno=each) for each in place.sockets]
        self._line = socket.socket(fileno=place.line)
        self.on_acted: Callable[[str, str, int], None] = lambda *_: None
        """To be set by who records what the parent did: who asked, for what, and what came of it."""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @classmethod
    def take(cls, argument: str) -> tuple[Self, Config]:
        """The seat that the command line names, and the settings of who sits there. Blocks."""
        place = msgspec.json.decode(argument, type=Place)
        seat = cls(place)
        (length,) = _LENGTH.unpack(seat._receive(_LENGTH.size))
        config = msgspec.msgpack.decode(seat._receive(length), type=Config)
        return seat, of_worker(config, place.number)

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._line.recv(count - len(data))
            if not piece:
                raise ConnectionError("the parent process is gone")
            data += piece
        return data

    async def told(self) -> Order:
        """The next order."""
        reader, _ = await self._opened()
        while (line := await reader.readline()).startswith(ACTED):
            self.on_acted(*msgspec.json.decode(line.removeprefix(ACTED), type=tuple[str, str, int]))
        order = Order(line)
        if order is Order.NONE:
            shutil.rmtree(Path(self.control_path).parent, ignore_errors=True)  # nobody asks there any more
        return order

    async def leave(self, metrics: bytes) -> None:
        _, writer = await self._opened()
        writer.write(metrics)
        try:
            await writer.drain()
        except ConnectionError:
            return  # nobody is there to be told
        finally:
            writer.close()

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._line.setblocking(False)
            self._streams = await asyncio.open_unix_connection(sock=self._line)
        return self._streams


def sent(config: Config) -> bytes:
    """The settings as the line carries them."""
    encoded = msgspec.msgpack.encode(config)
    return _LENGTH.pack(len(encoded)) + encoded


def own_path(path: str, number: int) -> str:
    """A worker's own file, where the settings name one."""
    return f"{path}.worker-{number}"


def paths_of_all(path: str) -> list[Path]:
    """The file that one process alone would have, and those of workers, the one written last at the end."""
    named = Path(path)
    workers = named.parent.glob(f"{glob.escape(named.name)}.worker-*[0-9]")
    found = [each for each in (named, *workers) if each.is_file()]
    return sorted(found, key=lambda each: each.stat().st_mtime)


def of_worker(config: Config, number: int) -> Config:
    """The settings with files and ports of its own for this worker. `state_path` stays: workers read each
    other's."""
    stream, recording, history = config.stream, config.recording, config.history
    replace = msgspec.structs.replace
    if stream.path is not None:
        stream = replace(stream, path=own_path(stream.path, number))
    if recording.path is not None:
        recording = replace(recording, path=own_path(recording.path, number))
    if history.path is not None:
        history = replace(history, path=own_path(history.path, number))
    listen, url = config.shared.peer_listen, config.shared.peer_url
    shared = replace(
        config.shared,
        peer_listen=_own_port(listen, number),
        peer_url=_own_port(url, number) if url is not None else None,
    )
    return replace(config, stream=stream, recording=recording, history=history, shared=shared)


def _own_port(address: str, number: int) -> str:
    """The first worker has the port that is named, the second the next, and so on; port 0 is any."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + number - 1}" if int(port) else address
