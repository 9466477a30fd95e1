"""What may go wrong with a WebSocket, on either side and in every state of it."""

import asyncio
import json
from typing import Any

import pytest

from gateway.domain import records as rec
from gateway.wire.websocket_frames import FrameReader, Message, Opcode, close_payload, frame
from tests.server.bench import PATIENCE_S, Bench, Client, Exchange, answer, eventually
from tests.server.test_websocket import Connect, connect, refused, speaker_of
from tests.server.websocket_bench import Socket, Speaker, create, events, records_of

__all__ = ["connect"]
MASK = b"\x01\x02\x03\x04"
KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: gw\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + KEY + b"\r\n\r\n"
)


def said(event: Any, opcode: Opcode = Opcode.TEXT) -> bytes:
    """As a client sends it."""
    return frame(opcode, json.dumps(event).encode(), MASK)


class Raw:
    """A client that writes and reads bytes."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._reader = FrameReader(is_masked=False, keeps=1 << 24)
        self._found: list[Message] = []

    @classmethod
    async def open(cls, bench: Bench, behind: bytes = b"", headers: bytes = b"") -> "Raw":
        client = await bench.connect()
        client.send(HANDSHAKE.removesuffix(b"\r\n") + headers + b"\r\n" + behind)
        answered = await client.receive()
        assert answered.status == 101
        assert answered.get(b"sec-websocket-accept") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        return cls(client)

    def send(self, data: bytes) -> None:
        self.client.send(data)

    async def message(self) -> Message:
        async with asyncio.timeout(PATIENCE_S):
            while not self._found:
                data = await self.client.reader.read(1 << 16)
                assert data, "the connection ended"
                self._found += self._reader.feed(data)
        return self._found.pop(0)

    async def event(self) -> Any:
        message = await self.message()
        assert message.opcode is Opcode.TEXT and message.data is not None
        return json.loads(message.data)

    async def closed(self) -> int:
        """The code of the next message, which is a close."""
        message = await self.message()
        assert message.opcode is Opcode.CLOSE and message.data is not None
        return int.from_bytes(message.data[:2])


def outcomes(records: list[rec.Record]) -> list[str]:
    return [each.outcome for each in records if isinstance(each, rec.GpuEnd)]


async def hangs(speaker: Speaker, socket: Socket, asked: Any) -> None:
    await socket.send_json(events("resp_1", text="x")[0])


# --- handshakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        (b"Version: 13", b"Version: 8"),
        (KEY, b"short"),
        (b"Sec-WebSocket-Key: " + KEY + b"\r\n", b""),
        (b"GET /v1/responses ", b"POST /v1/responses "),
        (b"/v1/responses ", b"/v1/realtime "),
        (b"/v1/responses ", b"/v1/responses/resp_1 "),
        (b"Host: gw\r\n", b"Host: gw\r\nContent-Length: 0\r\n"),
    ],
    ids=["version", "short key", "no key", "POST", "another path", "below it", "a body"],
)
async def test_a_handshake_that_is_none_is_a_426(start, change):
    bench = await start(backend=Speaker, limits={"linger_s": 0.1})
    response = await bench.ask(HANDSHAKE.replace(*change))
    assert response.status == 426 and response.get(b"upgrade") == b"HTTP/1.1"
    assert not speaker_of(bench).handshakes


async def test_behind_a_426_the_connection_ends(start):
    bench = await start()
    bench.backend.script = lambda exchange: exchange.send(answer(status=b"404 Not Found"))
    client = await bench.connect()
    response = await client.ask(HANDSHAKE + said(create()))
    assert response.status == 426 and response.all(b"connection") == [b"Upgrade", b"close"]
    assert await client.rest() == (b"", "eof")
    assert len(bench.backend.seen) == 1


async def test_what_comes_with_the_handshake_is_not_lost(start):
    bench = await start(backend=Speaker)
    client = await Raw.open(bench, said(create())[:20])
    client.send(said(create())[20:])
    assert (await client.event())["type"] == "response.created"


@pytest.mark.parametrize("wrong", ["accept", "extension", "no HTTP", "endless"])
async def test_a_backend_that_agrees_wrongly_is_a_426(start, connect: Connect, wrong):
    bench = await start()

    async def script(exchange: Exchange) -> None:
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        accept = b"Sec-WebSocket-Accept: %s\r\n" % exchange.request.get(b"sec-websocket-key")
        await exchange.send(
            {
                "accept": head + accept + b"\r\n",
                "extension": head + b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
                "no HTTP": b"\x16\x03\x01\r\n\r\n",
                "endless": b"HTTP/1.1 101 Switching Protocols\r\nX: " + b"y" * (1 << 17),
            }[wrong]
        )
        await exchange.until_left()

    bench.backend.script = script
    assert (await refused(bench, connect)).status == 426


async def test_a_backend_that_does_not_answer_is_given_up_and_asked_again(start, connect: Connect):
    bench = await start(upstream={"connect_timeout_s": 0.2})
    bench.backend.script = lambda exchange: exchange.until_left()
    for _ in range(2):
        assert (await refused(bench, connect)).status == 426
    assert len(bench.backend.seen) == 2


async def test_who_leaves_during_the_handshake_takes_the_backends_with_it(start):
    bench, left = await start(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.until_left()
        left.set()

    bench.backend.script = script
    client = await bench.connect()
    client.send(HANDSHAKE)
    await eventually(lambda: bench.backend.seen)
    client.close()
    await asyncio.wait_for(left.wait(), PATIENCE_S)


async def test_a_backend_that_is_gone_is_a_426(start, connect: Connect):
    bench = await start(backend=Speaker)
    await speaker_of(bench).close()
    assert (await refused(bench, connect)).status == 426


# --- the client's messages --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_message_in_pieces_is_one(start, size):
    bench = await start(backend=Speaker)
    client, whole = await Raw.open(bench), json.dumps(create("é" * 700)).encode()
    pieces = [whole[at : at + 500] for at in range(0, len(whole), 500)]
    ping = frame(Opcode.PING, b"p", MASK)
    data = b""
    for number, piece in enumerate(pieces):
        made = bytearray(frame(Opcode.TEXT if not number else Opcode.CONTINUATION, piece, MASK))
        if number < len(pieces) - 1:
            made[0] &= 0x7F
        data += bytes(made) + ping
    for at in range(0, len(data), size):
        client.send(data[at : at + size])
        await client.client.writer.drain()
        if size == 1 and at % 200 == 0:
            await asyncio.sleep(0)
    kinds = [await client.message() for _ in range(len(pieces) + len(events("resp_1", {"type": "x"})))]
    assert [each.data for each in kinds if each.opcode is Opcode.PONG] == [b"p"] * len(pieces)
    [raw] = speaker_of(bench).raw
    assert raw.data.encode() == whole


@pytest.mark.parametrize(
    "data",
    [
        frame(Opcode.TEXT, b"{}"),
        b"\xc1" + said({})[1:],
        b"\x83" + said({})[1:],
        frame(Opcode.CONTINUATION, b"x", MASK),
        b"\x01" + said({})[1:] + said({}),
        b"\x09" + frame(Opcode.PING, b"", MASK)[1:],
        b"\x89\xfe\x00\x7e" + MASK,
        b"\x81\xff" + b"\xff" * 8 + MASK,
        frame(Opcode.CLOSE, (1005).to_bytes(2), MASK),
        frame(Opcode.CLOSE, b"x", MASK),
    ],
    ids=["no mask", "reserved bit", "opcode 3", "continues nothing", "no continuation", "ping in pieces",
         "long ping", "2^64 bytes", "close 1005", "close of a byte"],
)  # fmt: skip
async def test_what_is_no_frame_ends_it(start, data):
    bench = await start(backend=Speaker, limits={"linger_s": 0.1})
    client = await Raw.open(bench)
    client.send(data + said(create()))
    assert await client.closed() == 1002
    assert (await client.client.rest())[1] == "eof"
    await eventually(lambda: speaker_of(bench).sockets[0].closed)
    assert not speaker_of(bench).asked


async def test_a_message_that_is_too_large_is_told_so(start):
    bench = await start(backend=Speaker, limits={"max_body_bytes": 10_000, "linger_s": 0.2})
    client = await Raw.open(bench)
    client.send(said(create("x" * 10_000)))
    told = await client.event()
    assert told["status"] == 413 and told["error"]["code"] == "body_too_large"
    assert await client.closed() == 1009
    client.send(b"x" * 100_000)  # what is on its way does not reset the answer away
    assert (await client.client.rest())[1] == "eof"
    assert not speaker_of(bench).raw


async def test_a_message_of_too_many_values_is_not_passed_on(start, connect: Connect):
    """It would take long to find out whether it asks for a response."""
    bench = await start(backend=Speaker)
    client = await connect(bench)
    await client.socket.send_str('{"type":"response.create","x":[' + "1," * 600_000 + "1]}")
    [told] = await client.turn()
    assert told["status"] == 413 and not speaker_of(bench).raw
    assert (await client.ask(text="x" * 600_000))[-1]["type"] == "response.completed"
    await client.socket.close()


async def test_messages_count_against_the_budget(start):
    bench = await start(backend=Speaker, limits={"max_buffered_bytes": 100_000, "linger_s": 0.1})
    client = await Raw.open(bench)
    client.send(said(create("x" * 120_000)))
    told = await client.event()
    assert told["status"] == 503 and told["error"]["code"] == "memory_full"
    assert await client.closed() == 1013
    await eventually(lambda: bench.gateway.listener.budget.used == 0)


async def test_what_waits_is_bounded(start, connect: Connect):
    """A turn waits for its place; the client sends on, and is not read for long."""
    bench = await start(backend=Speaker, admission={"max_running_per_replica": 1})
    backend, may_end = speaker_of(bench), asyncio.Event()
    backend.speaks_at(may_end)
    first, second = await connect(bench), await connect(bench)
    await first.socket.send_json(create())
    await eventually(lambda: len(backend.asked) == 1)
    await second.socket.send_json(create())

    async def floods() -> None:
        for _ in range(2000):
            await second.socket.send_json({"type": "x", "y": "z" * 10_000})

    flood = asyncio.create_task(floods())
    await asyncio.sleep(0.3)
    assert not flood.done() and 0 < bench.gateway.listener.budget.used < 1_000_000
    may_end.set()
    await first.turn()
    await second.turn()
    for _ in range(2000):
        assert (await second.socket.receive_json(timeout=10))["type"] == "heard"
    await flood
    for client in (first, second):
        await client.socket.close()


async def test_so_many_turns_run_at_once_and_no_more(start, connect: Connect):
    bench = await start(backend=Speaker)
    backend = speaker_of(bench)
    backend.turn = hangs
    client = await connect(bench)
    for at in range(17):
        await client.socket.send_json(create(stream_id=f"s{at}"))
    await eventually(lambda: len(backend.asked) == 16)
    await asyncio.sleep(0.05)
    assert len(backend.asked) == 16 and len(bench.brain.live) == 16
    [socket] = backend.sockets
    await socket.send_json({**events("resp_1", text="x")[-1], "stream_id": "s3"})
    await eventually(lambda: len(backend.asked) == 17)
    await client.socket.close()


# --- the client leaves ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "eof", "reset"])
@pytest.mark.parametrize("when", ["idle", "waiting", "running", "answered"])
async def test_a_client_that_leaves_takes_its_turn_with_it(start, when, how):
    bench = await start(
        backend=Speaker,
        admission={"max_running_per_replica": 1 if when == "waiting" else 8},
        limits={"linger_s": 0.1},
    )
    records, backend = records_of(bench), speaker_of(bench)
    before = len(backend.sockets)
    if when != "answered":
        backend.turn = hangs
    if when == "waiting":
        first = await Raw.open(bench)
        first.send(said(create()))
        await eventually(lambda: backend.asked)
        before = 1
    client = await Raw.open(bench)
    if when != "idle":
        client.send(said(create()))
    if when == "waiting":
        await eventually(lambda: len(bench.brain.waiting_room) == 1)
    elif when == "running":
        assert (await client.event())["type"] == "response.created"
    elif when == "answered":
        while (await client.event())["type"] != "response.completed":
            pass
    if how == "close":
        client.send(frame(Opcode.CLOSE, close_payload(1000, "bye"), MASK))  # type: ignore[arg-type]
        assert await client.closed() == 1000
        assert (await client.client.rest())[1] == "eof"
    elif how == "eof":
        client.client.close()
    else:
        client.client.reset()
    await eventually(lambda: backend.sockets[before].closed, "the backend's is open")
    if how == "close":
        assert backend.sockets[before].close_code == 1000
    await eventually(lambda: len(bench.gateway.serving.websockets) == (1 if when == "waiting" else 0))
    await eventually(lambda: len(bench.brain.live) == (1 if when == "waiting" else 0))
    ends = {"idle": [], "waiting": [], "running": ["client_left"], "answered": ["finished"]}
    assert outcomes(records) == ends[when]
