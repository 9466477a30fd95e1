"""The store that another process of this machine serves (`local_server.py`)."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from gateway.shared_state import frames
from gateway.shared_state.frames import HELLO, FrameError
from gateway.shared_state.protocol import Entry
from gateway.shared_state.remote import DEADLINE_S, RefusedError, RemoteStore

T = TypeVar("T")


class LocalStore(RemoteStore):
    """One connection; requests do not wait for the answers to those before."""

    _broken = (OSError, FrameError, msgspec.DecodeError)

    def __init__(self, path: str, *, deadline_s: float = DEADLINE_S) -> None:
        super().__init__(f"unix://{path}", deadline_s=deadline_s)
        self._path = path
        self._connection: _Connection | None = None

    async def _find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._ask(frames.Find(list(keys)), _found)

    async def _claim(self, key: bytes, value: bytes, ttl_s: float) -> bytes:
        return await self._ask(frames.Claim(key, value, ttl_s), _value)

    async def _exchange(self, origin: str, gauges: bytes, ttl_s: float) -> dict[str, bytes]:
        return await self._ask(frames.Exchange(origin, gauges, ttl_s), _gauges)

    async def _add(
        self, key: bytes, more: Sequence[float], least: Sequence[float], ttl_s: float
    ) -> list[float]:
        return await self._ask(frames.Add(key, list(more), list(least), ttl_s), _row)

    async def _write(self, batch: Sequence[Entry]) -> tuple[int, list[tuple[int, bytes]]]:
        return 0, await self._ask(frames.WriteAll(list(batch)), _replaced)

    async def _connect(self) -> None:
        if self._connection is None:
            _, self._connection = await self._loop.create_unix_connection(
                lambda: _Connection(self._disconnected), self._path
            )

    async def _ping(self) -> None:
        await self._ask(frames.Ping(), _nothing)

    async def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _disconnected(self) -> None:
        self._connection = None
        self._lost("its connection was closed")

    async def _ask(self, request: frames.Request, decoder: "msgspec.msgpack.Decoder[T]") -> T:
        if self._connection is None:
            raise ConnectionResetError("not connected")
        body = _encode(request)
        if len(body) > frames.MAX_FRAME_BYTES:
            raise RefusedError(f"a request of {len(body)} bytes")
        answer = await self._connection.ask(body)
        if answer[0] == frames.OK:
            return decoder.decode(memoryview(answer)[1:])
        raise RefusedError(_text.decode(memoryview(answer)[1:]))


class _Connection(asyncio.Protocol):
    def __init__(self, when_lost: Callable[[], None]) -> None:
        self._when_lost = when_lost
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._reader = frames.Reader()
        self._asked: deque[asyncio.Future[bytes]] = deque()
        """In the order of their answers, those included that nobody waits for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(HELLO)

    def connection_lost(self, error: Exception | None) -> None:
        self._when_lost()
        for future in self._asked:
            if not future.done():
                future.set_exception(ConnectionResetError("the store closed the connection"))
        self._asked.clear()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                if not frame or not self._asked:
                    raise FrameError("an answer that nobody asked for")
                future = self._asked.popleft()
                if not future.done():
                    future.set_result(frame)
        except FrameError:
            self._transport.abort()

    def ask(self, body: bytes) -> "asyncio.Future[bytes]":
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._asked.append(future)
        self._transport.write(frames.framed(body))
        return future

    def close(self) -> None:
        self._transport.abort()


_encode = msgspec.msgpack.encode
_found: "msgspec.msgpack.Decoder[list[bytes | None]]" = msgspec.msgpack.Decoder(list[bytes | None])
_value: "msgspec.msgpack.Decoder[bytes]" = msgspec.msgpack.Decoder(bytes)
_gauges: "msgspec.msgpack.Decoder[dict[str, bytes]]" = msgspec.msgpack.Decoder(dict[str, bytes])
_row: "msgspec.msgpack.Decoder[list[float]]" = msgspec.msgpack.Decoder(list[float])
_replaced: "msgspec.msgpack.Decoder[list[tuple[int, bytes]]]" = msgspec.msgpack.Decoder(
    list[tuple[int, bytes]]
)
_nothing: "msgspec.msgpack.Decoder[None]" = msgspec.msgpack.Decoder(type(None))
_text: "msgspec.msgpack.Decoder[str]" = msgspec.msgpack.Decoder(str)
