"""What a turn gets by HTTP it gets over a WebSocket: priority, receipts, bounds that gateways share, traces.
And streams of one connection do not wait for each other."""

import asyncio
import hashlib
import json
from typing import Any

import pytest

from gateway.core import events as ev
from tests.server.bench import eventually
from tests.server.test_several_gateways import several
from tests.server.test_websocket import Connect, connect, speaker_of
from tests.server.test_websocket_faults import hangs
from tests.server.websocket_bench import Socket, Speaker, create, events

__all__ = ["connect", "several"]

BACKGROUND = {"X-Turnpike-Class": "proactive"}
KEY = {"Authorization": "Bearer sesame"}
SESAME = "sha256:" + hashlib.sha256(b"sesame").hexdigest()
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def texts(speaker: Speaker) -> list[bytes]:
    return [each.data.encode() for each in speaker.raw]


@pytest.mark.parametrize(("headers", "ours"), [({}, 0), (BACKGROUND, 1)])
async def test_a_stock_engine_is_told_who_can_wait_behind_the_very_message(
    start, connect: Connect, headers, ours
):
    bench = await start(backend=Speaker, hints={"priority": True})
    client = await connect(bench, headers=headers)
    theirs = json.dumps(create())
    await client.socket.send_str(theirs)
    await client.turn()
    assert texts(speaker_of(bench)) == [b'%s,"priority":%d}' % (theirs[:-1].encode(), ours)]
    await client.socket.close()


@pytest.mark.parametrize("trust", [["scheduling"], []])
async def test_who_is_trusted_says_it_himself_and_nobody_else(start, connect: Connect, trust):
    tenants = [{"name": "alice", "key_hashes": [SESAME], "trust": trust}]
    bench = await start(backend=Speaker, hints={"priority": True}, tenants=tenants)
    client = await connect(bench, headers=KEY)
    theirs = json.dumps(create(priority=-3))
    await client.socket.send_str(theirs)
    await client.turn()
    (sent,) = texts(speaker_of(bench))
    assert sent == (theirs.encode() if trust else b'%s,"priority":0}' % theirs[:-1].encode())
    await client.socket.close()


async def test_nothing_is_said_of_it_unless_that_is_asked_for(start, connect: Connect):
    bench = await start(backend=Speaker)
    client = await connect(bench, headers=BACKGROUND)
    await client.ask()
    assert "priority" not in speaker_of(bench).asked[0]
    await client.socket.close()


async def test_a_connection_on_which_it_may_have_been_refused_tells_none(start, connect: Connect):
    bench = await start(backend=Speaker, hints={"priority": True})

    async def refuses(speaker: Speaker, socket: Socket, asked: Any) -> None:
        refusal = {"type": "error", "status": 400, "error": {"message": "no priority"}}
        told = [refusal] if "priority" in asked else events("resp_1", text="x")
        for event in told:
            await socket.send_json(event)

    speaker_of(bench).turn = refuses
    client = await connect(bench)
    assert [(await client.ask())[-1]["type"] for _ in range(2)] == ["error", "response.completed"]
    await client.socket.close()


@pytest.mark.parametrize("receipts", [True, False])
async def test_who_is_refused_is_told_what_was_decided(start, connect: Connect, receipts):
    bounds = [{"name": "short", "turns": 1}]
    bench = await start(backend=Speaker, bounds=bounds, server={"receipts": receipts})
    client = await connect(bench)
    await client.ask()
    (told,) = await client.ask(previous_response_id="resp_1")
    (session,) = bench.brain.sessions.sessions.newest_first()
    if receipts:
        assert told["headers"]["x-turnpike-session"] == session.id
        assert told["headers"]["x-turnpike-bound"] == "short turns"
        assert told["headers"]["x-turnpike-reason"] == "bound_reached"
    else:
        assert "headers" not in told
    await client.socket.close()


async def test_settings_that_change_count_on_connections_that_are_opened_from_then_on(
    start, connect: Connect
):
    bench = await start(backend=Speaker, bounds=[{"name": "short", "turns": 1}])
    before = await connect(bench)
    bench.settings["server"]["receipts"] = False
    await bench.gateway.settings.reload()
    after = await connect(bench)
    for client, has_receipts in ((before, True), (after, False)):
        await client.ask()
        (told,) = await client.ask(previous_response_id=f"resp_{len(speaker_of(bench).asked)}")
        assert told["type"] == "error" and ("headers" in told) is has_receipts
        await client.socket.close()


async def test_what_a_tenant_may_have_in_a_day_is_reserved_where_all_gateways_see_it(
    several, connect: Connect
):
    bound = {"name": "few", "of": "tenant", "per": "day", "turns": 1}
    gateways = await several(
        backend=Speaker, bounds=[bound], tenants=[{"name": "alice", "key_hashes": [SESAME]}]
    )
    may_end = asyncio.Event()
    for each in gateways:
        speaker_of(each).speaks_at(may_end)
    first, second = [await connect(each, headers=KEY) for each in gateways]
    await first.socket.send_json(create("one"))
    await eventually(lambda: speaker_of(gateways[0]).asked)
    (told,) = await second.ask(text="two")
    assert told["status"] == 403 and told["error"]["code"] == "bound_reached", "while the first one runs"
    may_end.set()
    await first.turn()
    for client in (first, second):
        await client.socket.close()


async def test_its_spans_are_the_clients_traces(start, connect: Connect):
    bench = await start(backend=Speaker, otel={"endpoint": "http://127.0.0.1:1"})
    client = await connect(bench, headers={"traceparent": TRACEPARENT})
    turns: list[Any] = []
    inner = bench.brain.handle

    def handle(event: ev.Event, *, now: float) -> Any:
        if isinstance(event, ev.RequestArrived):
            turns.append(event.request)
        return inner(event, now=now)

    bench.brain.handle = handle
    await client.ask()
    context = bench.gateway.observation.traces.of_client(turns[0])
    assert context is not None and context.trace_id.hex() == TRACEPARENT.split("-")[1]
    await client.socket.close()


async def test_a_replica_that_does_not_know_its_model_is_asked_what_it_serves(start, connect: Connect):
    bench = await start(backend=Speaker)
    state = next(iter(bench.brain.fleet))
    bench.brain.fleet.came_up(
        type(state.facts)(id=state.facts.id, pool=state.facts.pool, adapters=("m",)), now=0.0
    )
    asked: list[Any] = []
    bench.gateway.replica_watch.health.check_now = asked.append

    async def unknown(speaker: Speaker, socket: Socket, message: Any) -> None:
        await socket.send_json({"type": "error", "status": 404, "error": {"message": "no such model"}})

    speaker_of(bench).turn = unknown
    client = await connect(bench)
    await client.ask()
    assert asked == [state.facts.id]
    await client.socket.close()


# --- streams ----------------------------------------------------------------------------------------


async def test_a_turn_that_waits_holds_up_no_other_stream(start, connect: Connect):
    bench = await start(backend=Speaker, admission={"max_running_per_replica": 1})
    backend, may_end = speaker_of(bench), asyncio.Event()
    backend.speaks_at(may_end)
    first, second = await connect(bench), await connect(bench)
    await first.socket.send_json(create("one"))
    await eventually(lambda: len(backend.asked) == 1)
    await second.socket.send_json(create("two", stream_id="a"))
    await second.socket.send_json({"type": "response.steer", "stream_id": "a"})
    await second.socket.send_json({"type": "response.steer", "stream_id": "b"})
    heard = await second.socket.receive_json(timeout=10)
    assert heard["what"] == {"type": "response.steer", "stream_id": "b"}
    await second.socket.send_json(create("three", stream_id="b"))
    await eventually(lambda: len(bench.brain.waiting_room) == 2)
    may_end.set()
    await first.turn()
    found = [await second.socket.receive_json(timeout=10) for _ in range(2 * len(events("", text="x")) + 1)]
    ends = {each["stream_id"] for each in found if each["type"] == "response.completed"}
    assert ends == {"a", "b"}
    of_a = [each for each in backend.asked if each.get("stream_id") == "a"]
    assert [each["type"] for each in of_a] == ["response.create", "response.steer"]
    for client in (first, second):
        await client.socket.close()


async def test_no_more_turns_of_a_connection_wait_at_once_than_may_run(start, connect: Connect):
    bench = await start(backend=Speaker, admission={"max_running_per_replica": 1})
    backend, may_end = speaker_of(bench), asyncio.Event()
    backend.speaks_at(may_end)
    first, second = await connect(bench), await connect(bench)
    await first.socket.send_json(create())
    await eventually(lambda: len(backend.asked) == 1)
    for at in range(40):
        await second.socket.send_json(create(f"turn {at}", stream_id=f"s{at}"))
    await eventually(lambda: len(bench.brain.waiting_room) == 16)
    await asyncio.sleep(0.05)
    assert len(bench.brain.waiting_room) == 16
    may_end.set()
    await first.turn()
    for _ in range(40):
        while (await second.socket.receive_json(timeout=10))["type"] != "response.completed":
            pass
    assert len(backend.asked) == 41
    for client in (first, second):
        await client.socket.close()
    await eventually(lambda: not bench.gateway.listener.budget.used)


async def test_turns_that_run_and_turns_that_wait_are_no_more_together(start, connect: Connect):
    bench = await start(backend=Speaker, admission={"max_running_per_replica": 16})
    backend = speaker_of(bench)
    backend.turn = hangs
    first, second = await connect(bench), await connect(bench)
    await first.socket.send_json(create())
    await eventually(lambda: len(backend.asked) == 1)
    for at in range(18):
        await second.socket.send_json(create(f"turn {at}", stream_id=f"s{at}"))
    await eventually(lambda: len(backend.asked) == 16 and len(bench.brain.waiting_room) == 1)
    await asyncio.sleep(0.05)
    assert len(bench.brain.live) == 17, "15 that run and one that waits, beside the other connection's"
    for client in (first, second):
        await client.socket.close()


async def test_who_leaves_takes_all_that_wait_with_it(start, connect: Connect):
    bench = await start(backend=Speaker, admission={"max_running_per_replica": 1})
    backend = speaker_of(bench)
    backend.turn = hangs
    first, second = await connect(bench), await connect(bench)
    await first.socket.send_json(create())
    await eventually(lambda: len(backend.asked) == 1)
    for at in range(3):
        await second.socket.send_json(create(f"turn {at}" * 20_000, stream_id=f"s{at}"))
    await eventually(lambda: len(bench.brain.waiting_room) == 3)
    assert bench.gateway.listener.budget.used > 3 * 100_000, "what waits counts"
    await second.socket.close()
    await eventually(lambda: not len(bench.brain.waiting_room) and len(bench.brain.live) == 1)
    await first.socket.close()
    await eventually(lambda: not bench.brain.live and not bench.gateway.listener.budget.used)


async def test_a_bug_behind_a_wait_costs_one_connection(start, connect: Connect, monkeypatch):
    bench = await start(backend=Speaker, admission={"max_running_per_replica": 1})
    bench.may_log_errors = True
    backend, may_end = speaker_of(bench), asyncio.Event()
    backend.speaks_at(may_end)
    first, second = await connect(bench), await connect(bench)
    await first.socket.send_json(create())
    await eventually(lambda: len(backend.asked) == 1)
    await second.socket.send_json(create("two", stream_id="a"))
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    monkeypatch.setattr("gateway.server.outbound.Outbound.message", lambda *_, **__: 1 / 0)
    may_end.set()
    await first.turn()
    assert await second.closed() == 1006
    monkeypatch.undo()
    await eventually(lambda: not bench.brain.live)
    assert (await first.ask())[-1]["type"] == "response.completed"
    await first.socket.close()
