"""How a tunnel is held up, and how it ends: by either side, or by the gateway."""

import asyncio

import pytest

from gateway.core import events as ev
from gateway.domain import records as rec
from tests.server.bench import Exchange, bearer, eventually, hangs, post
from tests.server.test_auth import ALICE, TENANTS
from tests.server.test_tunnel import records_of
from tests.server.tunnels import (
    agrees,
    echo,
    handshake,
    none_left,
    open_tunnel,
    read_on,
    settles,
    stop_reading,
)

PIECE = b"x" * 100_000
PIECES = 400


def outcomes(records: list[rec.Record]) -> list[str]:
    return [each.outcome for each in records if isinstance(each, rec.GpuEnd)]


# --- flow control -------------------------------------------------------------------------------------


async def test_a_client_that_does_not_read_stops_the_replica_and_gets_everything_later(start):
    bench, sent = await start(), 0

    async def floods(exchange: Exchange) -> None:
        nonlocal sent
        for _ in range(PIECES):
            await exchange.send(PIECE)
            sent += 1
        exchange.writer.write_eof()
        await exchange.until_left()

    bench.backend.script = agrees(floods)
    client = await open_tunnel(bench)
    stop_reading(client.reader)
    assert await settles(lambda: sent) < PIECES / 2
    read_on(client.reader)
    await client.reader.readexactly(PIECES * len(PIECE))
    assert sent == PIECES


async def test_a_replica_that_does_not_read_stops_the_client_and_gets_everything_later(start):
    bench, may_read = await start(), asyncio.Event()
    sent = came = 0

    async def waits(exchange: Exchange) -> None:
        nonlocal came
        stop_reading(exchange.reader)
        await may_read.wait()
        read_on(exchange.reader)
        while data := await exchange.reader.read(1 << 20):
            came += len(data)

    async def floods() -> None:
        nonlocal sent
        for _ in range(PIECES):
            client.send(PIECE)
            await client.writer.drain()
            sent += 1

    bench.backend.script = agrees(waits)
    client = await open_tunnel(bench)
    flood = asyncio.create_task(floods())
    assert await settles(lambda: sent) < PIECES / 2
    may_read.set()
    await flood
    await eventually(lambda: came == PIECES * len(PIECE))


async def test_a_client_that_never_reads_is_cut(start):
    async def floods(exchange: Exchange) -> None:
        while True:
            await exchange.send(PIECE)

    bench = await start(limits={"client_stall_s": 0.2}, script=agrees(floods))
    records = records_of(bench)
    client = await open_tunnel(bench)
    stop_reading(client.reader)
    await eventually(lambda: outcomes(records) == ["client_left"])
    await none_left(bench)


async def test_a_replica_that_never_reads_is_cut_and_blamed(start):
    async def never_reads(exchange: Exchange) -> None:
        stop_reading(exchange.reader)
        while True:  # or else the silence would be the reason
            await exchange.send(b"x")
            await asyncio.sleep(0.05)

    bench = await start(upstream={"stall_timeout_s": 0.4}, script=agrees(never_reads))
    records = records_of(bench)
    client = await open_tunnel(bench)
    client.send(PIECE * PIECES)
    await eventually(lambda: outcomes(records) == ["cut"])
    assert (await client.rest())[1] == "reset"


# --- a side ends it -----------------------------------------------------------------------------------


async def test_half_a_close_of_the_clients_is_passed_on_and_the_other_half_goes_on(start):
    async def answers_behind_it(exchange: Exchange) -> None:
        assert await exchange.reader.read() == b"all of it"
        await exchange.send(b"the ")
        await asyncio.sleep(0.1)
        await exchange.send(b"answer")
        exchange.close()

    bench = await start(script=agrees(answers_behind_it))
    records = records_of(bench)
    client = await open_tunnel(bench)
    client.send(b"all of it")
    client.writer.write_eof()
    assert await client.rest() == (b"the answer", "eof")
    await eventually(lambda: outcomes(records) == ["finished"])


async def test_half_a_close_of_the_replicas_is_passed_on_and_the_other_half_goes_on(start):
    bench, came = await start(), bytearray()
    records = records_of(bench)

    async def ends(exchange: Exchange) -> None:
        await exchange.send(b"bye")
        exchange.writer.write_eof()
        came.extend(await exchange.reader.read())

    bench.backend.script = agrees(ends)
    client = await open_tunnel(bench)
    assert await client.rest() == (b"bye", "eof")
    client.send(b"and ")
    await asyncio.sleep(0.1)
    client.send(b"good bye")
    client.writer.write_eof()
    await eventually(lambda: bytes(came) == b"and good bye")
    await eventually(lambda: outcomes(records) == ["finished"])
    client.close()
    await none_left(bench)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_who_leaves_takes_the_replicas_connection_with_it(start, how):
    bench, left = await start(), asyncio.Event()
    records = records_of(bench)
    bench.backend.script = agrees(hangs(left))
    client = await open_tunnel(bench)
    client.send(b"hello")
    getattr(client, how)()
    await asyncio.wait_for(left.wait(), 5)
    await eventually(lambda: outcomes(records) == ["finished" if how == "close" else "client_left"])
    await none_left(bench)


async def test_a_replica_that_is_reset_resets_the_client(start):
    async def dies(exchange: Exchange) -> None:
        await exchange.send(b"hal")
        await asyncio.sleep(0.05)  # so that what was sent is read before the reset
        exchange.reset()

    bench = await start(script=agrees(dies))
    records = records_of(bench)
    client = await open_tunnel(bench)
    assert await client.rest() == (b"hal", "reset")
    await eventually(lambda: outcomes(records) == ["cut"])
    await none_left(bench)


async def test_who_leaves_during_the_handshake_takes_the_replicas_with_it(start):
    bench, left = await start(), asyncio.Event()
    bench.backend.script = hangs(left)
    client = await bench.arrive(handshake())
    client.close()
    await asyncio.wait_for(left.wait(), 5)


# --- the gateway ends it ------------------------------------------------------------------------------


async def test_a_replica_that_does_not_answer_the_handshake_is_given_up(start):
    bench = await start(upstream={"connect_timeout_s": 0.2}, script=lambda exchange: exchange.until_left())
    response = await bench.ask(handshake())
    assert response.status == 504 and response.json()["error"]["code"] == "upstream_timeout"


async def test_another_replica_is_asked_for_one_that_is_gone(start):
    bench = await start(replicas=2, script=agrees())
    await bench.backends[0].close()
    for _ in range(2):
        await open_tunnel(bench)
    assert len(bench.backends[1].seen) == 2


async def test_silence_of_both_ends_it_and_bytes_of_one_do_not(start):
    bench = await start(upstream={"stall_timeout_s": 0.4}, script=agrees())
    records = records_of(bench)
    talks, silent = [await open_tunnel(bench) for _ in range(2)]
    for _ in range(10):
        talks.send(b"x")
        await asyncio.sleep(0.1)
    assert await silent.rest() == (b"", "reset")
    assert outcomes(records) == ["client_left"], "the replica is not blamed"
    assert len(bench.brain.live) == 1


async def test_a_session_that_is_stopped_loses_it(start):
    bench, left = await start(), asyncio.Event()
    bench.backend.script = agrees(hangs(left))
    mine = handshake(headers=b"x-turnpike-session: s\r\n")
    client = await open_tunnel(bench, mine)
    (session,) = bench.brain.sessions.sessions.newest_first()
    bench.gateway.driver.send(ev.SessionStopped(session.id, 60.0))
    assert await client.rest() == (b"", "reset")
    await asyncio.wait_for(left.wait(), 5)
    refused = await bench.ask(mine)
    assert refused.status == 403 and refused.json()["error"]["code"] == "session_stopped"


async def test_one_that_still_waits_is_refused_when_its_session_is_stopped(start):
    bench = await start(script=lambda exchange: exchange.until_left())
    client = await bench.arrive(handshake())
    (session,) = bench.brain.sessions.sessions.newest_first()
    bench.gateway.driver.send(ev.SessionStopped(session.id, 60.0))
    assert (await client.receive()).status == 403


async def test_during_a_drain_it_goes_on_and_no_other_is_opened(start):
    bench = await start(script=agrees(echo))
    client, late = await open_tunnel(bench), await bench.connect()
    late.send(handshake()[:20])
    await asyncio.sleep(0.05)  # so that it is read before the drain begins
    draining = asyncio.create_task(bench.gateway.leaving.drain())
    await eventually(lambda: bench.brain.is_draining)
    late.send(handshake()[20:])
    assert (await late.receive()).status == 503
    client.send(b"hello")
    assert await client.reader.readexactly(5) == b"hello"
    assert not draining.done()
    client.writer.write_eof()
    assert await client.rest() == (b"", "eof")
    await asyncio.wait_for(draining, 5)


async def test_what_the_end_of_the_drain_cuts(start):
    bench = await start(server={"drain_s": 0.2}, script=agrees(echo))
    client = await open_tunnel(bench)
    await bench.gateway.leaving.drain()
    await bench.gateway.stop()
    assert await client.rest() == (b"", "reset")


@pytest.mark.parametrize("how", ["drained", "removed"])
async def test_a_replica_that_is_to_go_is_left_after_the_time_of_a_drain(start, how):
    bench = await start(replicas=2, server={"drain_s": 0.3}, script=agrees(echo))
    clients = [await open_tunnel(bench) for _ in bench.backends]
    assert all(backend.seen for backend in bench.backends), "one at each"
    if how == "drained":
        path = b"/turnpike/replicas/default-0/drain"
        assert (await bench.control(post(b'{"draining": true}', path))).status == 200
    else:
        pool = bench.settings["pools"][0]
        pool["replicas"] = [{**pool["replicas"][1], "name": "default-1"}]
        await bench.gateway.settings.reload()
    for client in clients:
        client.send(b"hello")
        assert await client.reader.readexactly(5) == b"hello", "it has time to end"
    await eventually(lambda: len(bench.brain.live) == 1)
    await asyncio.sleep(0.5)
    assert sorted([each.reader.exception() is None for each in clients]) == [False, True]


async def test_a_key_that_is_taken_away_ends_it(start):
    bench = await start(tenants=TENANTS, script=agrees(echo))
    old, new = [await open_tunnel(bench, handshake(headers=bearer(key))) for key in (ALICE, ALICE + "-new")]
    bench.settings["tenants"] = [
        {**each, "key_hashes": each["key_hashes"][1:]} if each["name"] == "alice" else each
        for each in TENANTS
    ]
    await bench.gateway.settings.reload()
    assert await old.rest() == (b"", "reset")
    new.send(b"hello")
    assert await new.reader.readexactly(5) == b"hello"


async def test_a_limit_of_tokens_that_comes_later_ends_it_after_the_time_of_a_drain(start):
    bench = await start(tenants=TENANTS, server={"drain_s": 0.2}, script=agrees(echo))
    client = await open_tunnel(bench, handshake(headers=bearer(ALICE)))
    limited = {**TENANTS[0], "quota": {"tokens_per_minute": 1000}}
    bench.settings["tenants"] = [limited, *TENANTS[1:]]
    await bench.gateway.settings.reload()
    assert await client.rest() == (b"", "reset")


async def test_it_counts_among_the_connections(start):
    bench = await start(limits={"max_connections": 2, "drain_rejected_body_s": 0.1}, script=agrees(echo))
    clients = [await open_tunnel(bench) for _ in range(2)]
    late = await bench.connect()
    assert (await late.receive()).status == 503
    clients[0].close()
    await eventually(lambda: bench.gateway.listener.connection_count < 2)
    await open_tunnel(bench)


async def test_a_bug_of_ours_costs_one_connection(start, monkeypatch):
    bench = await start(script=agrees(echo))
    bench.may_log_errors = True
    good = await open_tunnel(bench)
    monkeypatch.setattr("gateway.server.proxy.websockets.Tunnel.__init__", lambda *_: 1 / 0)
    assert (await bench.ask(handshake())).status == 500
    monkeypatch.undo()
    monkeypatch.setattr("gateway.server.proxy.websockets._End.send", lambda *_: 1 / 0)
    assert (await (await open_tunnel(bench)).rest())[1] == "reset"
    monkeypatch.undo()
    good.send(b"hello")
    assert await good.reader.readexactly(5) == b"hello"
