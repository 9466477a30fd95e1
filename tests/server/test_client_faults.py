"""What a client can do. `docs/operate/faults.md` lists the outcomes."""

import asyncio
import socket
import time
import tracemalloc

import pytest

from gateway.domain import records as rec
from gateway.server.http.connection_states import State
from tests.server.bench import (
    CHAT_ANSWER,
    DELTA,
    DONE,
    PATIENCE_S,
    STREAM_HEAD,
    Exchange,
    answer,
    chunk,
    eventually,
    get,
    pauses,
    post,
    sends,
)


def outcomes(bench) -> list[str]:
    """Follows the information stream from now on: how attempts end."""
    ended: list[str] = []
    inner = bench.gateway.driver._on_records

    def on_records(records):
        ended.extend(record.outcome for record in records if isinstance(record, rec.GpuEnd))
        inner(records)

    bench.gateway.driver._on_records = on_records
    return ended


class Departure:
    """A backend's script that notes when the gateway closed the connection."""

    def __init__(self, first: bytes = b"") -> None:
        self.first = first
        self.has_begun = asyncio.Event()
        self.left_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def __call__(self, exchange: Exchange) -> None:
        if self.first:
            await exchange.send(self.first)
        self.has_begun.set()
        await exchange.until_left()
        self.left_at.set_result(time.perf_counter())

    async def latency_after(self, leave) -> float:
        await asyncio.wait_for(self.has_begun.wait(), PATIENCE_S)
        await asyncio.sleep(0.05)  # everything sent has arrived
        left_at = time.perf_counter()
        leave()
        return await asyncio.wait_for(self.left_at, PATIENCE_S) - left_at


# --- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("first", [b"", STREAM_HEAD + chunk(DELTA)], ids=["before the head", "mid-stream"])
async def test_a_client_that_leaves_takes_its_request_along(start, first, how):
    bench = await start()
    ended = outcomes(bench)
    bench.backend.script = departure = Departure(first)
    client = await bench.send(post())
    latency = await departure.latency_after(getattr(client, how))
    print(f"the backend saw it {latency * 1e3:.1f} ms after the client left")
    assert latency < 2.0
    await eventually(bench.is_quiet)
    assert ended == ["client_left"]


async def test_a_client_may_leave_while_it_waits(start):
    bench = await start(admission={"max_running_per_replica": 1})
    bench.backend.script = departure = Departure()
    await bench.send(post())
    await departure.has_begun.wait()
    second = await bench.send(post())
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    second.close()
    await eventually(lambda: len(bench.brain.waiting_room) == 0)
    assert len(bench.backend.seen) == 1


@pytest.mark.parametrize(
    ("path", "terminal"),
    [
        (b"/v1/chat/completions", DONE),
        (b"/v1/messages", b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
        (
            b"/v1/responses",
            b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_1"}}\n\n',
        ),
    ],
)
async def test_leaving_after_the_terminal_event_is_finishing(start, path, terminal):
    bench = await start()
    ended = outcomes(bench)
    bench.backend.script = departure = Departure(STREAM_HEAD + chunk(terminal))
    client = await bench.send(post(path=path))
    await departure.latency_after(client.close)
    await eventually(bench.is_quiet)
    assert ended == ["finished"]


@pytest.mark.parametrize("first", [b"", STREAM_HEAD + chunk(DELTA)], ids=["before the head", "mid-stream"])
async def test_a_half_closed_client_is_gone(start, first):
    bench = await start()
    bench.backend.script = departure = Departure(first)
    client = await bench.send(post())
    assert await departure.latency_after(client.writer.write_eof) < 2.0
    assert (await client.rest())[1] == "reset"


# --- not reading ----------------------------------------------------------------------------------


async def never_reads(bench, request: bytes) -> socket.socket:
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", bench.gateway.listener.port))
    await loop.sock_sendall(sock, request)
    return sock


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.slow
async def test_a_client_that_does_not_read_holds_the_backend_back_and_is_cut(start, framing):
    piece = b"x" * (64 << 10)
    sent, has_left = 0, False
    head = STREAM_HEAD if framing == "chunked" else b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n"

    async def floods(exchange: Exchange) -> None:
        nonlocal sent, has_left
        exchange.is_closed = True
        exchange.writer.transport.set_write_buffer_limits(high=0)
        try:
            await exchange.send(head)
            for _ in range(1600):  # 100 MB
                await exchange.send(chunk(piece) if framing == "chunked" else piece)
                sent += len(piece)
        except OSError:
            has_left = True

    bench = await start(limits={"client_stall_s": 1.0}, script=floods)
    ended = outcomes(bench)
    sock = await never_reads(bench, post())
    tracemalloc.start()
    try:
        await asyncio.sleep(0.5)
        held, _ = tracemalloc.get_traced_memory()
        connection = next(iter(bench.gateway.listener._connections))
        unsent = connection.transport.get_write_buffer_size()
        before = sent
        await asyncio.sleep(0.2)
        assert sent == before < 50 << 20, "the backend is not held back"
        print(f"{sent >> 20} MiB in kernel buffers, {unsent >> 10} KiB unsent in the gateway")
        assert unsent < 1 << 20
        assert held < 4 << 20
    finally:
        tracemalloc.stop()
    await eventually(lambda: has_left)
    await eventually(bench.is_quiet)
    assert ended == ["client_left"]
    sock.close()


async def test_a_client_that_does_not_read_the_end_of_a_response_is_cut(start):
    bench = await start(limits={"client_stall_s": 0.3, "keep_alive_s": 0.2})
    bench.backend.script = sends(answer(b"x" * (16 << 20)))
    loop = asyncio.get_running_loop()
    sock = await never_reads(bench, b"")
    await eventually(lambda: bench.gateway.listener.connection_count == 1)
    connection = next(iter(bench.gateway.listener._connections))
    connection.transport.set_write_buffer_limits(high=1 << 30)  # all of it waits in the gateway
    await loop.sock_sendall(sock, post())
    await eventually(lambda: connection.state is State.CLOSING)
    assert connection.transport.get_write_buffer_size()
    await eventually(lambda: bench.gateway.listener.connection_count == 0)
    sock.close()


# --- slowness -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "limits"),
    [
        (b"P", {"head_timeout_s": 0.2}),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHo", {"head_timeout_s": 0.2}),
        (post()[:-3], {"body_stall_s": 0.2}),
        (post()[:-3], {"request_timeout_s": 0.2}),
    ],
)
async def test_a_request_that_does_not_come_is_a_408(start, part, limits):
    bench = await start(limits={"drain_rejected_body_s": 0.2, **limits})
    client = await bench.send(part)
    response = await client.receive()
    assert response.status == 408 and response.json()["error"]["code"] == "request_timeout"
    assert response.get(b"connection") == b"close" and await client.rest() == (b"", "eof")
    assert not bench.backend.seen


async def test_trickling_does_not_help(start):
    bench = await start(limits={"head_timeout_s": 0.3, "drain_rejected_body_s": 0.1})
    client = await bench.connect()

    async def trickle() -> None:
        for byte in get(b"/v1/models", b"X: %s\r\n" % (b"y" * 1000)):
            client.send(bytes([byte]))
            await asyncio.sleep(0.02)

    trickling = asyncio.create_task(trickle())
    assert (await client.receive()).status == 408
    trickling.cancel()


async def test_an_idle_connection_is_closed(start):
    bench = await start(limits={"keep_alive_s": 0.2})
    client = await bench.connect()
    assert (await client.ask(post())).status == 200
    assert await client.rest() == (b"", "eof")


async def test_a_connection_is_not_idle_while_it_is_answered(start):

    async def late(exchange: Exchange) -> None:
        await asyncio.sleep(0.5)
        await exchange.send(answer())

    bench = await start(limits={"keep_alive_s": 0.1, "head_timeout_s": 0.1}, script=late)
    assert (await bench.ask(post())).status == 200


# --- HTTP's corners -------------------------------------------------------------------------------


async def test_pipelined_requests_are_answered_in_order(start):

    async def echoes_slowly(exchange: Exchange) -> None:
        await asyncio.sleep(0.1 if exchange.request.target.endswith(b"0") else 0)
        await exchange.send(answer(exchange.request.target))

    bench = await start(script=echoes_slowly)
    client = await bench.send(b"".join(get(b"/v1/models/%d" % n) for n in range(20)))
    for n in range(20):
        assert (await client.receive()).body == b"/v1/models/%d" % n


async def test_a_good_request_before_a_bad_one_is_answered(start):
    bench = await start(limits={"drain_rejected_body_s": 0.1})
    client = await bench.send(post() + b"\x00\x00")
    assert (await client.receive()).status == 200
    assert (await client.receive()).status == 400
    assert await client.rest() == (b"", "eof")


async def test_expect_100_continue(start):
    bench = await start()
    client = await bench.connect()
    request = post(headers=b"Expect: 100-continue\r\n")
    head, body = request.split(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    assert (await client.receive()).status == 100
    client.send(body)
    assert (await client.receive()).status == 200
    assert bench.backend.seen[0].get(b"expect") is None
    # Whoever does not wait for it is not told.
    assert (await client.ask(request)).status == 200


async def test_a_pipelined_expectation_does_not_break_into_a_response(start):
    go_on = asyncio.Event()
    bench = await start(script=pauses(STREAM_HEAD + chunk(DELTA), go_on, chunk(DONE) + b"0\r\n\r\n"))
    client = await bench.arrive(post())
    head, body = post(headers=b"Expect: 100-continue\r\n").split(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    await asyncio.sleep(0.1)
    go_on.set()
    first = await client.receive()
    assert first.is_whole and first.body == DELTA + DONE
    assert (await client.receive()).status == 100
    client.send(body)
    assert (await client.receive()).body == DELTA + DONE


async def test_http_1_0(start):
    bench = await start()
    request = post().replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Host: gw\r\n", b"")
    client = await bench.connect()
    response = await client.ask(request)
    assert response.get(b"connection") == b"close" and response.body == CHAT_ANSWER
    assert await client.rest() == (b"", "eof")
    kept = await bench.connect()
    for _ in range(2):
        response = await kept.ask(request.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n"))
        assert response.get(b"connection") == b"keep-alive" and response.body == CHAT_ANSWER


async def test_http_1_0_knows_no_chunks(start):
    bench = await start(script=sends(STREAM_HEAD + chunk(DELTA) + chunk(DONE) + b"0\r\n\r\n"))
    request = post(headers=b"Connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
    client = await bench.connect()
    response = await client.ask(request)
    assert response.get(b"transfer-encoding") is None and response.get(b"connection") == b"close"
    assert response.body == DELTA + DONE


async def test_a_chunked_request_is_framed_anew(start):
    bench = await start()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b'5;name="v"\r\n{"mod\r\n3\r\nel"\r\n0008;x\r\n : "m" }\r\n0\r\n'
    body += b"X-Late: 1\r\nAuthorization: no\r\n\r\n"
    assert (await bench.ask(head + body)).status == 200
    seen = bench.backend.seen[0]
    assert seen.body == b'{"model" : "m" }' and seen.get(b"content-length") == b"16"
    for dropped in (b"transfer-encoding", b"x-late", b"authorization"):
        assert seen.get(dropped) is None


async def test_an_empty_post(start):
    bench = await start()
    for request in (post(b""), b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\n\r\n"):
        assert (await bench.ask(request)).status == 200
    assert [m.get(b"content-length") for m in bench.backend.seen] == [b"0", b"0"]


async def test_a_method_and_a_query_of_its_own(start):
    bench = await start()
    assert (await bench.ask(b"DELETE /a/b?c=%2F..&d=/../e HTTP/1.1\r\nHost: gw\r\n\r\n")).status == 200
    seen = bench.backend.seen[0]
    assert seen.first_line == b"DELETE /a/b?c=%2F..&d=/../e HTTP/1.1" and seen.get(b"content-length") is None


async def test_too_many_connections(start):
    bench = await start(limits={"max_connections": 2, "drain_rejected_body_s": 0.2})
    first, second = await bench.connect(), await bench.connect()
    assert (await first.ask(post())).status == (await second.ask(post())).status == 200
    third = await bench.connect()
    response = await third.ask(post())
    assert response.status == 503 and response.get(b"retry-after") is not None
    assert await third.rest() == (b"", "eof")
    assert (await first.ask(post())).status == 200
    second.close()
    await eventually(lambda: bench.gateway.listener.connection_count == 1)
    assert (await bench.ask(post())).status == 200
