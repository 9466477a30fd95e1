"""Clients that do not read: what the gateway holds for them is bounded, and nobody else notices."""

import asyncio
import tracemalloc

import pytest

from gateway.server.connection_states import State
from tests.server.bench import Exchange, answer, eventually, get, hangs, pauses, post


@pytest.mark.parametrize("connections", [1, 20])
@pytest.mark.parametrize(
    "request_", [get(b"/v1/files/x"), post(b"w" * 2000, b"/v1/files/x")], ids=["GET", "POST"]
)
async def test_pipelined_requests_are_not_held(start, request_, connections):
    bench = await start()
    hold = asyncio.Event()
    bench.backend.script = pauses(b"", hold, answer(b"{}"))
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
    sizes = [1, 300_000, 7, 200_000, 0]
    client = await bench.arrive(b"".join(post(b"x" * size, b"/v1/files/x") for size in sizes))
    (connection,) = bench.gateway.listener._connections
    await eventually(lambda: connection._parser.unread_bytes > 64 << 10)
    assert connection._parser.unread_bytes <= 512 << 10 and bench.gateway.listener.budget.used == 1
    hold.set()
    for size in sizes:
        assert (await client.receive()).body == b"%d" % size


async def test_who_pipelines_a_little_and_leaves_is_noticed(start):
    bench = await start()
    left = asyncio.Event()
    bench.backend.script = hangs(left)
    client = await bench.arrive(post() + post() + post())
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
