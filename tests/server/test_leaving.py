"""How a gateway ends: what runs or waits is finished, within its time; each further signal hurries it."""

import asyncio
import signal
import socket

from tests.server.bench import CHAT, DELTA, STREAM_HEAD, Client, chunk, eventually, get, post, sends
from tests.server.test_queue import Gate


async def test_what_runs_and_what_waits_is_finished(start):
    bench = await start(admission={"max_running_per_replica": 1})
    bench.backend.script = gate = Gate()
    idle, running, waiting = await bench.connect(), await bench.arrive(post()), await bench.send(post())
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    late = await bench.send(post()[:-1])
    await eventually(lambda: bench.gateway.listener.budget.used == 3 * len(CHAT) - 1)
    draining = asyncio.create_task(bench.gateway.leaving.drain())
    assert await idle.rest() == (b"", "eof")
    late.send(post()[-1:])  # it was being sent when the drain began, so it is answered, but not served
    refused = await late.receive()
    assert refused.status == 503 and refused.json()["error"]["code"] == "draining"
    gate.passes.release()
    gate.passes.release()
    for client in (running, waiting):
        response = await client.receive()
        assert response.status == 200 and response.get(b"connection") == b"close"
        assert await client.rest() == (b"", "eof")
    await asyncio.wait_for(draining, 5)


async def test_a_connection_that_begins_as_the_drain_does_holds_it_up_for_a_moment_only(start):
    bench = await start()
    bench.backend.script = gate = Gate()
    running = await bench.arrive(post())
    draining = asyncio.create_task(bench.gateway.leaving.drain())
    await asyncio.sleep(0)
    silent, speaks = [await late_connection(bench.gateway.listener) for _ in range(2)]
    speaks.send(post())
    assert (await speaks.receive()).status == 503
    gate.passes.release()
    assert (await running.receive()).status == 200
    assert await asyncio.wait_for(silent.rest(), 5) == (b"", "eof")
    await asyncio.wait_for(draining, 5)
    silent.close()
    speaks.close()


async def late_connection(listener):
    """One that the system had accepted already when the listener closed."""
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(listener._begin, theirs)
    return Client(*await asyncio.open_connection(sock=ours))


async def test_what_takes_too_long_is_cut(start):
    bench = await start(server={"drain_s": 0.2}, script=sends(STREAM_HEAD + chunk(DELTA), then="hang"))
    client = await bench.send(post())
    await client.reader.readuntil(DELTA)
    await bench.gateway.leaving.drain()
    assert bench.gateway.listener.connection_count == 1
    await bench.gateway.stop()
    assert (await client.rest())[1] == "reset"


async def test_first_it_is_not_ready_then_it_takes_no_more(start):
    bench = await start(server={"shutdown_delay_s": 3600})
    idle = await bench.connect()
    retiring = asyncio.create_task(bench.gateway.leaving.retire())
    await asyncio.sleep(0)
    assert (await bench.control(get(b"/turnpike/readyz"))).status == 503
    response = await idle.ask(post())
    assert response.status == 200 and response.get(b"connection") is None
    assert (await bench.ask(post())).status == 200
    bench.gateway.leaving._hurry.set()
    await retiring
    await bench.gateway.leaving.drain()
    assert await idle.rest() == (b"", "eof")


async def test_each_further_signal_goes_on_to_the_next_step(start):
    bench = await start(server={"shutdown_delay_s": 3600, "drain_s": 3600})
    bench.backend.script = sends(STREAM_HEAD + chunk(DELTA), then="hang")
    client = await bench.connect()
    client.send(post())
    await client.reader.readuntil(DELTA)
    leaving = bench.gateway.leaving
    over = asyncio.create_task(leaving.wait(bench.gateway._tasks))
    await asyncio.sleep(0)
    assert not leaving.is_retiring
    leaving.signalled(signal.SIGTERM)
    await eventually(lambda: leaving.is_retiring)
    assert not bench.gateway.listener.is_draining and not over.done()
    leaving.signalled(signal.SIGTERM)
    await eventually(lambda: bench.gateway.listener.is_draining)
    assert not over.done(), "what runs may end"
    leaving.signalled(signal.SIGTERM)
    await asyncio.wait_for(over, 5)
    assert bench.gateway.listener.connection_count == 1
    await bench.gateway.stop()


async def test_who_is_interrupted_begins_with_the_drain(start):
    bench = await start(server={"shutdown_delay_s": 3600})
    over = asyncio.create_task(bench.gateway.leaving.wait(bench.gateway._tasks))
    bench.gateway.leaving.signalled(signal.SIGINT)
    await asyncio.wait_for(over, 5)
    assert bench.brain.is_draining
