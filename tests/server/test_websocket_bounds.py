"""Bounds and stopped sessions, for turns over a WebSocket."""

import asyncio

import aiohttp

from gateway.core import events as ev
from tests.server.bench import eventually
from tests.server.test_websocket import connect, speaker_of  # noqa: F401 - a fixture
from tests.server.websocket_bench import RESULT, Speaker, create


async def test_a_bound_is_told_as_an_event_and_the_connection_goes_on(start, connect):  # noqa: F811
    bench = await start(backend=Speaker, bounds=[{"name": "short", "turns": 1}])
    client = await connect(bench)
    await client.ask()
    (told,) = await client.ask(previous_response_id="resp_1", input=[RESULT])
    assert told["type"] == "error" and told["status"] == 403
    assert told["error"]["code"] == "bound_reached"
    assert len(speaker_of(bench).asked) == 1
    await client.socket.close()


async def test_who_is_stopped_loses_its_connection(start, connect):  # noqa: F811
    bench = await start(backend=Speaker)
    silent = asyncio.Event()

    async def waits(*_) -> None:
        await silent.wait()

    speaker_of(bench).turn = waits
    client = await connect(bench)
    await client.socket.send_json(create())
    await eventually(lambda: len(bench.brain.live) == 1)
    (session,) = bench.brain.sessions.sessions.newest_first()
    bench.gateway.driver.send(ev.SessionStopped(session.id, 60.0))
    assert await client.closed() == aiohttp.WSCloseCode.ABNORMAL_CLOSURE
    await eventually(lambda: not bench.brain.live)
    silent.set()
