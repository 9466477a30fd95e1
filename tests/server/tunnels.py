"""Handshakes of WebSockets, and both ends of a tunnel as raw sockets."""

import asyncio
import contextlib
from typing import Any

from gateway.wire.handshake import accept_of
from tests.server.bench import Bench, Client, Exchange, Script, eventually

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""RFC 6455 §1.3."""


def handshake(path: bytes = b"/v1/realtime", headers: bytes = b"") -> bytes:
    return (
        b"GET %s HTTP/1.1\r\nHost: gw\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n%s\r\n" % (path, KEY, headers)
    )


def switched(key: bytes, headers: bytes = b"") -> bytes:
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %s\r\n%s\r\n" % (accept_of(key).encode(), headers)
    )


async def agree(exchange: Exchange, behind: bytes = b"") -> None:
    key = exchange.request.get(b"sec-websocket-key")
    assert key is not None
    exchange.is_closed = True  # no other request comes on this connection
    await exchange.send(switched(key) + behind)


def agrees(then: Script | None = None) -> Script:
    """A replica that switches, and then does this; by default it waits until the connection has ended."""

    async def script(exchange: Exchange) -> None:
        await agree(exchange)
        await (then(exchange) if then is not None else exchange.until_left())

    return script


async def echo(exchange: Exchange) -> None:
    """Every byte comes back, until the client has ended its half; then the replica ends its own."""
    with contextlib.suppress(OSError):
        while data := await exchange.reader.read(1 << 16):
            await exchange.send(data)
        exchange.writer.write_eof()
        await exchange.reader.read()


async def open_tunnel(bench: Bench, request: bytes | None = None, behind: bytes = b"") -> Client:
    client = await bench.connect()
    response = await client.ask((request or handshake()) + behind)
    assert response.status == 101, response.head
    assert response.get(b"sec-websocket-accept") == ACCEPT
    return client


def stop_reading(reader: asyncio.StreamReader) -> None:
    reader._transport.pause_reading()  # type: ignore[attr-defined]


def read_on(reader: asyncio.StreamReader) -> None:
    reader._transport.resume_reading()  # type: ignore[attr-defined]


async def settles(count: Any, pause_s: float = 0.2) -> int:
    """The number that this does not go beyond any more."""
    before = -1
    while before != count():
        before = count()
        await asyncio.sleep(pause_s)
    return before


async def none_left(bench: Bench) -> None:
    await eventually(lambda: not any(bench.books().values()), f"{bench.books()}")
