"""What may go wrong with a WebSocket, on either side and in every state of it."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import WSMsgType

from gateway.domain import records as rec
from gateway.wire.websocket_frames import FrameReader, Message, Opcode, close_payload, frame
from tests.server.bench import PATIENCE_S, Bench, Client, Exchange, answer, eventually, post
from tests.server.test_websocket import Connect, connect, refused, speaker_of
from tests.server.websocket_bench import Socket, Speaker, agree, agrees, create, events, records_of, text

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
    async def open(cls, bench: Bench, behind: bytes = b"") -> "Raw":
        client = await bench.connect()
        client.send(HANDSHAKE + behind)
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

    async def slowly(speaker: Speaker, socket: Socket, asked: Any) -> None:
        await may_end.wait()
        await socket.send_json(events("resp_1", text="x")[-1])

    backend.turn = slowly
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
    await eventually(lambda: len(bench.gateway.websockets) == (1 if when == "waiting" else 0))
    await eventually(lambda: len(bench.brain.live) == (1 if when == "waiting" else 0))
    ends = {"idle": [], "waiting": [], "running": ["client_left"], "answered": ["finished"]}
    assert outcomes(records) == ends[when]


# --- the backend leaves -----------------------------------------------------------------------------

CREATED = text(events("resp_1", text="x")[0])
LANES = [text({**events("resp_1", text="x")[0], "stream_id": each}) for each in "ab"]


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_backend_that_dies_in_the_middle_of_a_turn(start, then):
    bench = await start()
    records = records_of(bench)
    bench.backend.script = agrees(CREATED, then=then)
    client = await Raw.open(bench)
    client.send(said(create()))
    assert (await client.event())["type"] == "response.created"
    told = await client.event()
    assert told["type"] == "error" and told["status"] == 502
    assert told["error"]["code"] == "upstream_broken" and "stream_id" not in told
    assert await client.closed() == 1011
    client.send(frame(Opcode.CLOSE, b"", MASK))
    assert await client.client.rest() == (b"", "eof")
    assert outcomes(records) == ["cut"]


async def test_each_stream_is_told(start):
    bench = await start()
    bench.backend.script = agrees(then="close")
    client = await Raw.open(bench)
    client.send(said(create(stream_id="a")) + said(create(stream_id="b")))
    assert [(await client.event())["stream_id"] for _ in "ab"] == ["a", "b"]
    assert await client.closed() == 1011


async def test_a_backend_that_dies_in_the_middle_of_a_message_takes_the_client_with_it(start):
    bench = await start()
    records = records_of(bench)
    bench.backend.script = agrees(CREATED, CREATED[:-5], then="reset")
    client = await Raw.open(bench)
    client.send(said(create()))
    assert (await client.event())["type"] == "response.created"
    data, how = await client.client.rest()
    assert how == "reset" and CREATED.startswith(data)
    assert outcomes(records) == ["cut"]


async def test_behind_half_of_a_message_in_pieces_only_the_close_is_told(start):
    bench = await start()
    bench.backend.script = agrees(bytes([CREATED[0] & 0x7F]) + CREATED[1:], then="close")
    client = await Raw.open(bench)
    client.send(said(create()))
    assert await client.closed() == 1011


async def test_a_backend_that_sends_no_frames(start):
    bench = await start()
    bench.backend.script = agrees(CREATED + b"HTTP/1.1 500 Oops\r\n\r\n")
    client = await Raw.open(bench)
    client.send(said(create()))
    assert (await client.event())["type"] == "response.created"
    assert (await client.event())["status"] == 502
    assert await client.closed() == 1011


async def test_a_backend_that_sends_half_a_message_and_no_more(start):
    """Another one begins in the middle of it."""
    bench = await start()
    bench.backend.script = agrees(CREATED + bytes([CREATED[0] & 0x7F]) + CREATED[1:] + CREATED)
    client = await Raw.open(bench)
    client.send(said(create()))
    assert (await client.event())["type"] == "response.created"
    assert await client.closed() == 1011


async def test_a_backend_that_leaves_between_turns(start):
    bench = await start(backend=Speaker)
    records, client = records_of(bench), await Raw.open(bench)
    client.send(said(create()))
    while (await client.event())["type"] != "response.completed":
        pass
    transport = speaker_of(bench).sockets[0]._req.transport
    assert transport is not None
    transport.abort()
    assert await client.closed() == 1012
    assert outcomes(records) == ["finished"]


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("code", [1000, 1001, 4001])
async def test_a_close_of_the_backends_is_passed_on(start, connect: Connect, code, is_running):
    bench = await start(backend=Speaker)
    records, backend = records_of(bench), speaker_of(bench)

    async def closes(speaker: Speaker, socket: Socket, asked: Any) -> None:
        await socket.close(code=code, message=b"over")

    backend.turn = closes
    client = await connect(bench)
    if is_running:
        await client.socket.send_json(create())
        assert await client.closed() == code
    else:
        await eventually(lambda: backend.sockets)
        closing = asyncio.create_task(closes(backend, backend.sockets[0], None))
        assert await client.closed() == code
        await closing
        assert backend.sockets[0].close_code == 1000  # as this client answers any close
    await eventually(lambda: not len(bench.gateway.websockets))
    assert outcomes(records) == ["cut"] * is_running


async def test_a_backend_that_falls_silent_is_given_up(start):
    bench = await start(upstream={"stall_timeout_s": 0.2}, limits={"linger_s": 0.1})
    records = records_of(bench)
    bench.backend.script = agrees(CREATED)
    client = await Raw.open(bench)
    await asyncio.sleep(0.4)  # nobody asked: it may be silent
    client.send(said(create()))
    assert (await client.event())["type"] == "response.created"
    assert "stopped sending" in (await client.event())["error"]["message"]
    assert await client.closed() == 1011
    assert outcomes(records) == ["cut"]


async def test_a_ping_of_the_backends_is_the_clients_to_answer(start):
    bench = await start()
    pongs: list[Message] = []

    async def script(exchange: Exchange) -> None:
        await agree(exchange)
        await exchange.send(frame(Opcode.PING, b"there?"))
        exchange.is_closed, reader = True, FrameReader(is_masked=True, keeps=1 << 16)
        while data := await exchange.reader.read(1 << 16):
            pongs.extend(reader.feed(data))

    bench.backend.script = script
    client = await Raw.open(bench)
    ping = await client.message()
    assert ping.opcode is Opcode.PING and ping.data == b"there?"
    client.send(frame(Opcode.PONG, b"there?", MASK))
    await eventually(lambda: pongs)
    assert pongs[0] == Message(Opcode.PONG, b"there?")


# --- flow control -----------------------------------------------------------------------------------


async def test_a_client_that_does_not_read_stops_its_backend_and_gets_everything_later(start):
    bench, sent = await start(), 0
    big = text({"type": "response.output_text.delta", "delta": "x" * 100_000})

    async def script(exchange: Exchange) -> None:
        nonlocal sent
        await agree(exchange)
        for _ in range(400):
            await exchange.send(big)
            sent += 1
        await exchange.send(text(events("resp_1", text="x")[-1]))
        await exchange.until_left()

    bench.backend.script = script
    client = await Raw.open(bench)
    client.send(said(create()))
    client.client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    await eventually(lambda: sent)
    before = -1
    while before != sent:
        before = sent
        await asyncio.sleep(0.2)
    assert sent < 200
    assert len(bench.brain.live) == 1
    client.client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(400):
        assert (await client.message()).data is not None
    assert (await client.event())["type"] == "response.completed"
    assert sent == 400


async def test_a_client_that_never_reads_is_cut(start):
    bench = await start(limits={"client_stall_s": 0.2})
    records = records_of(bench)
    big = text({"type": "response.output_text.delta", "delta": "x" * 100_000})
    bench.backend.script = agrees(*[big] * 400)
    client = await Raw.open(bench)
    client.client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.send(said(create()))
    await eventually(lambda: outcomes(records) == ["client_left"])


async def test_a_backend_that_does_not_read_stops_its_client(start):
    bench = await start()
    may_read = asyncio.Event()
    got = bytearray()

    async def script(exchange: Exchange) -> None:
        await agree(exchange)
        exchange.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await may_read.wait()
        exchange.reader._transport.resume_reading()  # type: ignore[attr-defined]
        exchange.is_closed = True
        while data := await exchange.reader.read(1 << 20):
            got.extend(data)

    bench.backend.script = script
    client = await Raw.open(bench)
    message = said({"type": "x", "y": "z" * 1_000_000})
    client.send(said({"type": "first"}))

    async def floods() -> None:
        for _ in range(40):
            client.send(message)
            await client.client.writer.drain()

    flood = asyncio.create_task(floods())
    await asyncio.sleep(0.5)
    assert not flood.done() and bench.gateway.listener.budget.used < 4_000_000
    may_read.set()
    await flood
    await eventually(lambda: len(got) >= 40 * len(message))
    client.client.close()


# --- the gateway ends it ----------------------------------------------------------------------------


async def test_one_that_nobody_uses_is_closed(start, connect: Connect):
    bench = await start(backend=Speaker, server={"websocket": {"idle_s": 0.3}})
    client = await connect(bench)
    await client.ask()
    assert await client.closed() == 1001


async def test_draining_ends_it_behind_what_runs(start, connect: Connect):
    bench = await start(backend=Speaker)
    backend = speaker_of(bench)
    backend.turn = hangs
    idle, busy = await connect(bench), await connect(bench)
    await busy.socket.send_json(create())
    await eventually(lambda: backend.asked)
    draining = asyncio.create_task(bench.gateway.drain())
    assert await idle.closed() == 1012
    assert (await busy.socket.receive_json())["type"] == "response.created"
    await busy.socket.send_json(create(stream_id="late"))
    told = await busy.socket.receive_json(timeout=10)
    assert told["error"]["code"] == "draining" and told["stream_id"] == "late"
    assert not draining.done() and not busy.socket.closed
    await backend.sockets[1].send_json(events("resp_1", text="x")[-1])
    assert (await busy.turn())[-1]["type"] == "response.completed"
    assert await busy.closed() == 1012
    await asyncio.wait_for(draining, 5)


@pytest.mark.parametrize("how", ["drained", "left"])
async def test_a_replica_that_is_to_go_is_left_behind_what_runs(start, connect: Connect, how):
    bench = await start(backend=Speaker, replicas=2)
    clients = [await connect(bench) for _ in bench.backends]
    names = [client.socket._response.headers["X-Turnpike-Replica"] for client in clients]
    if how == "drained":
        body = b'{"draining": true}'
        path = b"/turnpike/replicas/%s/drain" % names[0].encode()
        assert (await bench.control(post(body, path))).status == 200
    else:
        member = bench.gateway._replicas[names[0]]  # type: ignore[index]
        bench.gateway._members._leave(_Member(names[0]), "said so")  # type: ignore[arg-type]
        assert member.id not in bench.gateway._replicas
    assert await clients[0].closed() == 1012
    assert (await clients[1].ask())[-1]["type"] == "response.completed"
    again = await connect(bench)
    assert again.socket._response.headers["X-Turnpike-Replica"] == names[1]
    for client in (again, clients[1]):
        await client.socket.close()


class _Member:
    def __init__(self, name: str) -> None:
        self.name = name


async def test_what_the_end_of_the_drain_cuts(start):
    bench = await start(backend=Speaker, server={"drain_s": 0.2})
    speaker_of(bench).turn = hangs
    client = await Raw.open(bench)
    client.send(said(create()))
    assert (await client.event())["type"] == "response.created"
    await bench.gateway.drain()
    await bench.gateway.stop()
    assert (await client.client.rest())[1] == "reset"


async def test_a_bug_of_ours_costs_one_connection(start, connect: Connect, monkeypatch):
    bench = await start(backend=Speaker)
    bench.may_log_errors = True
    good, bad = await connect(bench), await connect(bench)
    monkeypatch.setattr("gateway.server.websocket.read_asked", lambda data: 1 / 0)
    await bad.socket.send_json(create())
    assert (await bad.socket.receive(timeout=10)).type in (WSMsgType.CLOSED, WSMsgType.ERROR)
    monkeypatch.undo()
    assert (await good.ask())[-1]["type"] == "response.completed"
    await good.socket.close()
