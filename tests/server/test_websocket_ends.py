"""How a WebSocket ends, by whose doing, and how it is held up."""

import asyncio
from typing import Any

import pytest
from aiohttp import WSMsgType

from gateway.wire.websocket_frames import FrameReader, Message, Opcode, frame
from tests.server.bench import Exchange, eventually, post
from tests.server.test_auth import ALICE, TENANTS
from tests.server.test_websocket import Connect, connect, speaker_of
from tests.server.test_websocket_faults import MASK, Raw, hangs, outcomes, said
from tests.server.websocket_bench import Socket, Speaker, agree, agrees, create, events, records_of, text

__all__ = ["connect"]

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
    closing = asyncio.create_task(speaker_of(bench).close())
    [state] = bench.brain.fleet
    assert await client.closed() == 1012
    assert outcomes(records) == ["finished"]
    await eventually(lambda: not state.is_up, "nobody asked it how it is")
    await closing


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
    await eventually(lambda: not len(bench.gateway.serving.websockets))
    assert outcomes(records) == ["cut"] * is_running


@pytest.mark.slow
async def test_a_backend_that_falls_silent_is_given_up(start):
    bench = await start(upstream={"stall_timeout_s": 0.4}, limits={"linger_s": 0.1})
    records = records_of(bench)

    async def script(exchange: Exchange) -> None:
        await agree(exchange)
        await exchange.reader.read(1 << 16)
        await asyncio.sleep(0.15)
        await exchange.send(CREATED)
        await exchange.until_left()

    bench.backend.script = script
    client = await Raw.open(bench)
    await asyncio.sleep(0.8)  # nobody asked: it may be silent
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


async def test_a_refusal_is_told_between_two_messages(start):
    """One stream's event is half sent when another stream's turn is refused."""
    bench = await start(admission={"max_running_per_replica": 1}, core={"max_held_s": 0.1})
    may_go_on = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await agree(exchange)
        await exchange.send(LANES[0][:20])
        await may_go_on.wait()
        await exchange.send(LANES[0][20:])
        await exchange.until_left()

    bench.backend.script = script
    client = await Raw.open(bench)
    client.send(said(create(stream_id="a")) + said(create(stream_id="b")))
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    await eventually(lambda: not bench.brain.waiting_room.turns)
    may_go_on.set()
    assert (await client.event())["stream_id"] == "a"
    told = await client.event()
    assert told["stream_id"] == "b" and told["status"] == 503


async def test_so_many_refusals_are_held_and_no_more(start):
    bench = await start(tenants=TENANTS, limits={"linger_s": 0.1})
    bench.backend.script = agrees(LANES[0][:20])
    client = await Raw.open(bench, headers=b"Authorization: Bearer %s\r\n" % ALICE.encode())
    client.send(said({}))
    assert await client.client.reader.readexactly(20) == LANES[0][:20]
    client.send(frame(Opcode.TEXT, b"{", MASK) * 17)
    assert await client.client.rest() == (b"", "reset")


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


@pytest.mark.slow
async def test_a_backend_is_not_blamed_for_a_client_that_does_not_read(start):
    bench = await start(upstream={"stall_timeout_s": 0.3})
    big = text({"type": "response.output_text.delta", "delta": "x" * 100_000})
    bench.backend.script = agrees(*[big] * 400, text(events("resp_1", text="x")[-1]))
    client = await Raw.open(bench)
    client.client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.send(said(create()))
    await asyncio.sleep(1.0)
    client.client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(400):
        assert (await client.message()).opcode is Opcode.TEXT
    assert (await client.event())["type"] == "response.completed"


async def test_a_client_that_never_reads_is_cut(start):
    bench = await start(limits={"client_stall_s": 0.2})
    records = records_of(bench)
    big = text({"type": "response.output_text.delta", "delta": "x" * 100_000})
    bench.backend.script = agrees(*[big] * 400)
    client = await Raw.open(bench)
    client.client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.send(said(create()))
    await eventually(lambda: outcomes(records) == ["client_left"])


@pytest.mark.parametrize("size", [50_000, 1_000_000], ids=["less than may wait", "more"])
@pytest.mark.slow
async def test_a_backend_that_does_not_read_stops_its_client(start, size):
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
    message = said({"type": "x", "y": "z" * size})
    client.send(said({"type": "first"}))

    sent, before, most = 0, -1, 40_000_000 // size

    async def floods() -> None:
        nonlocal sent
        for _ in range(most):
            client.send(message)
            await client.client.writer.drain()
            await asyncio.sleep(0.001)  # each is read by itself
            sent += 1

    flood = asyncio.create_task(floods())
    while before != sent:
        before = sent
        await asyncio.sleep(0.4)
    assert sent < 0.75 * most and bench.gateway.listener.budget.used < 4_000_000
    may_read.set()
    await flood
    await eventually(lambda: len(got) >= most * len(message))
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
    draining = asyncio.create_task(bench.gateway.leaving.drain())
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
        member = bench.gateway.replica_watch.replicas[names[0]]
        bench.gateway.replica_watch.members._leave(_Member(names[0]), "said so")
        assert member.id not in bench.gateway.replica_watch.replicas
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
    await bench.gateway.leaving.drain()
    await bench.gateway.stop()
    assert (await client.client.rest())[1] == "reset"


async def test_a_bug_of_ours_costs_one_connection(start, connect: Connect, monkeypatch):
    bench = await start(backend=Speaker)
    bench.may_log_errors = True
    good, bad = await connect(bench), await connect(bench)
    monkeypatch.setattr("gateway.server.websocket_asking.read_asked", lambda data: 1 / 0)
    await bad.socket.send_json(create())
    assert (await bad.socket.receive(timeout=10)).type in (WSMsgType.CLOSED, WSMsgType.ERROR)
    monkeypatch.undo()
    assert (await good.ask())[-1]["type"] == "response.completed"
    await good.socket.close()


# --- its key is taken away ---------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [False, True])
async def test_a_key_that_is_taken_away_ends_it_behind_what_runs(start, runs):
    bench = await start(tenants=TENANTS)
    may_end = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await agree(exchange)
        if runs:
            await exchange.send(CREATED)
            await may_end.wait()
            await exchange.send(text(events("resp_1", text="x")[-1]))
        await exchange.until_left()

    bench.backend.script = script
    headers = b"Authorization: Bearer %s\r\n" % ALICE.encode()
    client = await Raw.open(bench, headers=headers)
    if runs:
        client.send(said(create()))
        assert (await client.event())["type"] == "response.created"
    bench.settings["tenants"] = [
        {**each, "key_hashes": each["key_hashes"][1:]} if each["name"] == "alice" else each
        for each in TENANTS
    ]
    assert bench.gateway.settings is not None
    await bench.gateway.settings.reload()
    if runs:
        client.send(said(create()))  # nothing else begins
        await asyncio.sleep(0.05)
        may_end.set()
        assert (await client.event())["type"] == "response.completed"
    assert await client.closed() == 1012
    client.send(frame(Opcode.CLOSE, b"", MASK))
    assert await client.client.rest() == (b"", "eof")
    assert (await bench.ask(post(headers=headers))).status == 401
