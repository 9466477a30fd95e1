"""What the gateway holds for a client, and until when."""

import asyncio
import gc
import gzip
import random
import subprocess
import sys
import tracemalloc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.config.hints import HintsConfig
from gateway.config.http_limits import HttpLimits
from gateway.domain.fleet import Abilities
from gateway.server.http.body_limits import BufferBudget
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.request_parser import HttpRequest
from gateway.server.proxy.upstream_request import Outbound
from gateway.upstream.replica import Address, Replica
from tests.server.bench import DELTA, DONE, STREAM_HEAD, Exchange, answer, chunk, eventually, post, sends
from tests.server.test_request_parser import Parser


async def test_a_body_counts_until_the_response_has_begun(start):

    async def streams(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD + chunk(DELTA))
        await exchange.until_left()

    bench = await start(limits={"max_buffered_bytes": 3_000_000}, script=streams)
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"%s"}]}' % (b"w " * 200_000)
    for _ in range(10):
        client = await bench.send(post(body))
        assert b" 200 " in await client.reader.readuntil(b"\r\n\r\n")
    assert bench.gateway.listener.budget.used == 0
    assert all(c._current.body == b"" for c in bench.gateway.listener._connections)


async def test_bodies_take_room_while_they_are_inflated(start):
    """A dozen, each of which would fit in alone."""
    bench = await start(limits={"max_buffered_bytes": 8 << 20})
    text = random.randbytes(10_000).hex().encode() * 150
    packed = gzip.compress(b'{"model":"m","messages":[],"user":"%s"}' % text)
    request = post(packed, headers=b"Content-Encoding: gzip\r\n")
    clients = [await bench.connect() for _ in range(12)]
    tracemalloc.start()
    try:
        answers = await asyncio.gather(*(client.ask(request) for client in clients))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {each.status for each in answers} == {200, 503} and len(bench.backend.seen) < 6
    assert peak < 24 << 20
    cut = post(packed[:-9], headers=b"Content-Encoding: gzip\r\n")
    assert (await bench.ask(cut)).status == 200, "it passes as it came"
    (await bench.send(request)).writer.close()
    await eventually(lambda: bench.gateway.listener.budget.used == 0)


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_a_body_counts_while_an_engine_that_answered_early_does_not_take_it(
    start, tls_upstream, is_tls
):
    settings = tls_upstream if is_tls else {}
    bench = await start(limits={"max_buffered_bytes": 1 << 27}, **settings)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def answers_early(exchange: Exchange) -> None:
        cast(asyncio.Transport, exchange.writer.transport).pause_reading()
        await exchange.send(STREAM_HEAD + chunk(DELTA))
        begun.set()
        await goes_on.wait()
        exchange.writer.transport.abort()

    bench.backend.script, bench.backend.reads_bodies = answers_early, False
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"%s"}]}' % (b"w " * (1 << 24))
    client = await bench.send(post(body))
    assert b" 200 " in await client.reader.readuntil(b"\r\n\r\n")
    await begun.wait()
    budget = bench.gateway.listener.budget
    counted = budget.used
    goes_on.set()
    assert counted == len(body)
    await eventually(lambda: budget.used == 0)


# --- connections that ended -----------------------------------------------------------------------


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


STREAM = STREAM_HEAD + chunk(DELTA) + chunk(DONE) + b"0\r\n\r\n"


async def in_pieces(exchange: Exchange) -> None:
    for piece in (STREAM_HEAD, chunk(DELTA), chunk(DONE), b"0\r\n\r\n"):
        await exchange.send(piece)
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "script",
    [sends(answer()), in_pieces, sends(STREAM_HEAD + chunk(DELTA), then="reset"), sends(b"", then="hang")],
    ids=["whole", "stream", "cut", "left"],
)
async def test_a_connection_that_ended_dies_without_the_garbage_collector(start, no_collector, script):
    bench = await start(script=script)
    bench.may_log_errors = True
    dead: list[weakref.ref[ClientConnection]] = []
    for _ in range(10):
        client = await bench.connect()
        await eventually(lambda: bench.gateway.listener._connections)
        (connection,) = bench.gateway.listener._connections
        dead.append(weakref.ref(connection))
        del connection
        bench.backend.seen.clear()
        client.send(post())
        await eventually(lambda: bench.backend.seen)
        if script is not in_pieces:
            await asyncio.sleep(0.01)
        else:
            assert (await client.receive()).is_whole
        client.close()
        await eventually(lambda: not bench.gateway.listener._connections)
    await eventually(bench.is_quiet)
    await eventually(lambda: not any(ref() for ref in dead), f"{[ref() for ref in dead]}")


@pytest.mark.parametrize("sent", [b"", b"POST / HTTP", post()[:-3], b"\x00\x00"])
async def test_one_that_ended_early_does_so_too(start, no_collector, sent):
    bench = await start(limits={"drain_rejected_body_s": 0.1})
    client = await bench.send(sent)
    await eventually(lambda: bench.gateway.listener._connections)
    (connection,) = bench.gateway.listener._connections
    ref = weakref.ref(connection)
    del connection
    client.close()
    await eventually(lambda: ref() is None)


COLLECTIONS = """
import gc
from gateway.server.runtime.memory import set_up_memory
set_up_memory()
looked_at = []
gc.callbacks.insert(0, lambda phase, info: looked_at.append(len(gc.get_objects()))
                    if phase == "start" and info["generation"] >= 1 else None)
kept = [[] for _ in range(2_000_000)]
ring = []
ring.append(ring)
del ring
found = sum(each["collected"] for each in gc.get_stats())
kept += [[] for _ in range(500_000)]
print(len(looked_at), max(looked_at), sum(each["collected"] for each in gc.get_stats()) - found)
"""


def test_a_long_collection_looks_only_at_what_is_new():
    command = [sys.executable, "-c", COLLECTIONS]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    count, most, collected = map(int, told.split())
    assert count >= 5 and most < 200_000 and collected >= 1


LARGE_BUFFERS = """
from gateway.server.runtime.memory import set_up_memory
set_up_memory()
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
def body():
    return bytearray(b"x") * (8 << 20)
before, kept = resident(), []
for _ in range(20):
    large = body()
    kept.append(bytes(5_000))
    del large
print(resident() - before)
"""


def test_a_large_body_leaves_no_memory_behind():
    """Small objects that were made behind it are kept; without help that costs as much as the body."""
    command = [sys.executable, "-c", LARGE_BUFFERS]
    assert int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) < 1 << 20


# --- replicas that leave ---------------------------------------------------------------------------


def test_a_replica_with_the_name_of_another_gets_what_is_its_own():
    """A name may be used again, for another address and another key."""
    parser = Parser()
    parser.feed(post())
    request: HttpRequest = parser.requests[0]
    outbound = Outbound(HintsConfig(), lambda _: Abilities(), are_keys_required=False)
    told = []
    for url, key in (("http://one:1/a", "first"), ("http://two:2/b", "second")):
        address, config = Address.parse(url), cast(Any, SimpleNamespace())
        replica = Replica(cast(Any, "r-0"), cast(Any, "p"), address, config=config, api_key=key)
        chunks = outbound.chunks(request, replica)
        told.append(b"".join(bytes(part) for part in chunks))
    assert b"POST /a/v1/" in told[0] and b"Host: one:1\r\n" in told[0] and b"Bearer first" in told[0]
    assert b"POST /b/v1/" in told[1] and b"Host: two:2\r\n" in told[1] and b"Bearer second" in told[1]


# --- many small things -----------------------------------------------------------------------------


def held_by(pieces: list[bytes]) -> tuple[Parser, int]:
    """A parser that was fed these, and what it holds then."""
    parser = Parser()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for piece in pieces:
            parser.feed(piece)
        return parser, tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        [CHUNKED, b"2;x=y\r\nab\r\n" * 2400],
        [CHUNKED, *([b"2\r\n", b"ab", b"\r\n"] * 2400)],
        [b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4801\r\n\r\n", *([b"ab"] * 2400)],
    ],
    ids=["extensions", "reads", "length"],
)
def test_a_body_in_tiny_parts_takes_little_more_than_its_bytes(pieces):
    parser, held = held_by(pieces)
    assert parser.refusal is None and parser._body_bytes == parser._budget.used == 4800
    assert held < 4 * 4800 + 8192


def test_tiny_fields_count_for_what_they_take():
    parser, _ = held_by([b"GET / HTTP/1.1\r\nHost: a\r\n", b"x:\r\n" * 80])
    assert parser.refusal is not None


def test_a_body_is_copied_once():
    parser = Parser()
    parser._limits = HttpLimits()
    data = post(b"x" * 4_000_000, headers=b"X-Turn: 1\r\n")
    parser._budget = BufferBudget(1 << 30)
    tracemalloc.start()
    try:
        parser.hold(data)
        request = parser.next_request()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert request is not None and len(request.body) == 4_000_000
    assert most < 1.5 * 4_000_000
