"""Clients that do not read: what the gateway holds for them is bounded, and nobody else notices."""

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.server.connection import ClientConnection
from gateway.server.connection_states import State
from tests.server.bench import (
    PATIENCE_S,
    STREAM_HEAD,
    Bench,
    Exchange,
    answer,
    chunk,
    eventually,
    get,
    post,
    sends,
)

BODY = b'{"x":"%s"}' % (b"y" * 50_000)
SMALL = answer(BODY)
"""Whole in one read of the gateway."""
PIECE = b"z" * (64 << 10)
MAX_HELD = 1 << 20
"""High-water mark, a read of the backend, and what is not read of the client; with room to spare."""


class Deaf:
    """A client on a socket with a small buffer, which reads only when told to."""

    def __init__(self, bench: Bench, sock: socket.socket, connection: ClientConnection) -> None:
        self.bench, self.sock, self.connection = bench, sock, connection
        self.loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.sock, data)

    async def stops_reading(self) -> int:
        """Asks one by one, until the gateway sees that nothing is read. How many it asked for."""
        asked = 0
        while not self.connection.is_paused:
            self.bench.backend.seen.clear()
            await self.send(get(b"/v1/files/small"))
            asked += 1
            await eventually(lambda: self.bench.backend.seen)
            await eventually(lambda: self.connection.state is State.IDLE)
        return asked

    async def reads(self, count: int) -> None:
        """Reads so many of the small answers, and sees that each is whole and in its place."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        data = bytearray()
        for _ in range(count):
            while (end := data.find(b"\r\n\r\n")) < 0 or len(data) < end + 4 + len(BODY):
                data += await asyncio.wait_for(self.loop.sock_recv(self.sock, 1 << 20), PATIENCE_S)
            assert data.startswith(b"HTTP/1.1 200 OK\r\n")
            assert data[end + 4 : end + 4 + len(BODY)] == BODY
            del data[: end + 4 + len(BODY)]
        assert not data

    @property
    def held(self) -> int:
        return self.connection.transport.get_write_buffer_size() + self.connection._parser.unread_bytes


@asynccontextmanager
async def deaf(bench: Bench) -> AsyncIterator[Deaf]:
    known = set(bench.gateway.listener._connections)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", bench.gateway.listener.port))
        await eventually(lambda: len(bench.gateway.listener._connections) > len(known))
        (connection,) = bench.gateway.listener._connections - known
        yield Deaf(bench, sock, connection)
    finally:
        sock.close()


class Flood:
    """Small answers, and one stream of 64 MiB."""

    def __init__(self) -> None:
        self.sent = 0

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.request.target != b"/v1/files/big":
            await exchange.send(SMALL)
            return
        exchange.writer.transport.set_write_buffer_limits(high=0)
        await exchange.send(STREAM_HEAD)
        for _ in range(1024):
            await exchange.send(chunk(PIECE))
            self.sent += len(PIECE)
        await exchange.send(b"0\r\n\r\n")


async def test_no_request_is_begun_while_the_client_does_not_read(start):
    bench = await start()
    bench.backend.script = sends(SMALL)
    async with deaf(bench) as client:
        asked = await client.stops_reading()
        await client.send(get(b"/v1/files/next") * 50)
        answered = len(bench.backend.seen)
        # A second client is served meanwhile; so whatever was to happen for the first one has happened.
        for _ in range(3):
            assert (await bench.ask(get(b"/v1/files/other"))).status == 200
        assert len(bench.backend.seen) == answered + 3
        await client.reads(asked + 50)


async def test_a_stream_to_a_client_that_stopped_reading_before_is_not_read(start):
    bench = await start()
    bench.backend.script = flood = Flood()
    async with deaf(bench) as client:
        # The request is on its way to the backend when the client's buffer fills.
        gate = asyncio.Event()

        async def late(exchange: Exchange) -> None:
            if exchange.request.target == b"/v1/files/big":
                await gate.wait()
            await flood(exchange)

        bench.backend.script = late
        await client.send(get(b"/v1/files/big"))
        await eventually(lambda: bench.backend.seen)
        client.connection.transport.set_write_buffer_limits(high=0)
        client.connection.transport.write(b"HTTP/1.1 103 Early Hints\r\nX: %s\r\n\r\n" % (b"x" * (8 << 20)))
        assert client.connection.is_paused
        before = client.held
        gate.set()
        await eventually(lambda: bench.gateway.serving.handlers._relays)
        (relay,) = bench.gateway.serving.handlers._relays
        await eventually(lambda: not relay.upstream.transport.is_reading())
        assert client.held - before <= MAX_HELD
        assert not relay.is_waiting_for_replica


async def test_a_slow_client_leaves_no_paused_connection_for_others(start):
    """The last bytes of a response fill the client's buffer; the replica's connection is used again."""
    bench = await start()

    async def in_two(exchange: Exchange) -> None:
        await exchange.send(SMALL[:100])
        if len(bench.backend.seen) == 1:
            await eventually(lambda: bench.gateway.serving.handlers._relays)
        await exchange.send(SMALL[100:])

    bench.backend.script = in_two
    async with deaf(bench) as client:
        transport = client.connection.transport
        transport.set_write_buffer_limits(high=1 << 30)
        transport.write(b"HTTP/1.1 103 Early Hints\r\nX: %s\r\n\r\n" % (b"x" * (8 << 20)))
        transport.set_write_buffer_limits(high=transport.get_write_buffer_size() + 1000)
        await client.send(get(b"/v1/files/two"))
        await eventually(lambda: client.connection.is_paused and bench.is_quiet())
        assert (await bench.ask(get(b"/v1/files/two"))).status == 200
        assert bench.backend.connections == 1, "it was not used again"


@pytest.mark.parametrize("connections", [1, 20])
@pytest.mark.parametrize(
    "request_", [get(b"/v1/files/x"), post(b"w" * 2000, b"/v1/files/x")], ids=["GET", "POST"]
)
async def test_pipelined_requests_are_not_held(start, request_, connections):
    bench = await start()
    hold = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await hold.wait()
        await exchange.send(answer(b"{}"))

    bench.backend.script = waits
    clients = [await bench.connect() for _ in range(connections)]
    flood = request_ * (20_000 // connections)
    tracemalloc.start()
    for client in clients:
        client.send(flood)
    before, _ = tracemalloc.get_traced_memory()
    opened = bench.gateway.listener._connections
    await eventually(
        lambda: (
            len(opened) == connections
            and all(c.state is State.SERVING and c._parser.unread_bytes for c in opened)
        )
    )
    await eventually(lambda: len(bench.backend.seen) == connections)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{(held - before) / 2**20:.1f} MiB for {len(flood) * connections / 2**20:.1f} MiB")
    assert held - before < 16 << 20
    assert all(c._parser.unread_bytes <= 512 << 10 for c in opened)
    hold.set()
    for client in clients:
        for _ in range(5):
            assert (await client.receive()).status == 200
        client.reset()


async def test_what_a_client_sends_while_it_is_answered_is_bounded_and_served(start):
    bench = await start()
    hold = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await hold.wait()
        await exchange.send(answer(b"%d" % len(exchange.request.body)))

    bench.backend.script = waits
    client = await bench.connect()
    sizes = [1, 300_000, 7, 200_000, 0]
    client.send(b"".join(post(b"x" * size, b"/v1/files/x") for size in sizes))
    await eventually(lambda: bench.backend.seen)
    (connection,) = bench.gateway.listener._connections
    await eventually(lambda: connection._parser.unread_bytes > 64 << 10)
    assert connection._parser.unread_bytes <= 512 << 10 and bench.gateway.listener.budget.used == 1
    hold.set()
    for size in sizes:
        assert (await client.receive()).body == b"%d" % size


async def test_who_pipelines_a_little_and_leaves_is_noticed(start):
    bench = await start()
    left = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await exchange.until_left()
        left.set()

    bench.backend.script = waits
    client = await bench.connect()
    client.send(post() + post() + post())
    await eventually(lambda: bench.backend.seen)
    client.close()
    await asyncio.wait_for(left.wait(), 10)
    assert len(bench.backend.seen) == 1


async def test_an_empty_line_behind_a_body_is_no_request(start):
    bench = await start()
    client = await bench.connect()
    for _ in range(3):
        client.send(post())
        client.send(b"\r\n")
        assert (await client.receive()).status == 200
