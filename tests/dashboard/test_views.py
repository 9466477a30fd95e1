"""Snapshots and explanations in slices, so that requests go on in between."""

import asyncio
import gc
import json
import time

import msgspec

from gateway.core.commands import Action
from gateway.dashboard.views import Views
from gateway.domain.engine import EngineSignals, PluginReport, SessionKv
from gateway.domain.ids import ReplicaId, RequestId, SessionId
from gateway.telemetry.ring import Ring
from tests.core.playbook import Playbook, arrived, finished, first_token, started, stated
from tests.telemetry.lines import as_lines

HELD = SessionKv(session=SessionId("s-1"), resident_tokens=640, retained_tokens=160)
RESTING = (*(msgspec.structs.replace(HELD, resident_tokens=16) for _ in range(99)), HELD)
PLUGINS = {ReplicaId("a"): PluginReport(sessions=RESTING)}


def watched(sessions: int, **settings):
    play = Playbook(max_running_per_replica=10_000, **settings)
    for number in range(sessions):
        name = f"r{number}"
        for event in (arrived(name, explicit=stated(name)), started(name), first_token(name), finished(name)):
            told = play.brain.handle(event, now=play.now)  # not looking at the books each time
            play.records += [each for each in told if not isinstance(each, Action)]
    ring = Ring(100_000, 1 << 30)
    for start in range(0, len(play.records), 256):  # as they are handed over
        ring.extend(*as_lines(play.records[start : start + 256]))
    signals = {ReplicaId("a"): EngineSignals(kv_used=0.5, waiting=3)}
    return play, ring, Views(play.brain, ring, signals, PLUGINS, clock=time.monotonic)


async def test_a_snapshot_is_bounded_and_never_holds_up_the_loop():
    play, ring, views = watched(1500)
    longest_s, is_done = 0.0, False

    async def others() -> None:
        nonlocal longest_s
        then = time.thread_time()
        while not is_done:
            await asyncio.sleep(0)
            longest_s, then = max(longest_s, time.thread_time() - then), time.thread_time()

    gc.collect()
    gc.disable()  # whatever else this process holds is no matter of ours
    try:
        going_on = asyncio.ensure_future(others())
        await asyncio.sleep(0)  # it has begun, and notices if it does not come to its turn
        began = time.thread_time()
        told = json.loads(await views.snapshot())
        took_s = time.thread_time() - began
        is_done = True
        await going_on
    finally:
        gc.enable()
    assert len(told["sessions"]) == 1000 and told["session_count"] == 1500 and told["seq"] == ring.last
    assert told["sessions"][0]["id"] == play.session.id, "the newest first"
    assert told["sessions"][0]["last_turns"][0]["turn"] == "r1499"
    assert told["replicas"][0]["kv_used"] == 0.5 and told["replicas"][0]["engine_waiting"] == 3
    held = told["replicas"][0]["kv_of_sessions"]
    assert held[0] == {"session": "s-1", "resident_tokens": 640, "retained_tokens": 160} and len(held) == 64
    assert longest_s < took_s / 2, "in slices"


async def test_what_was_made_for_one_serves_all_for_a_while():
    _, _, views = watched(3)
    first, second = await asyncio.gather(views.snapshot(), views.snapshot())
    assert first is second
    views._fresh_until_s = 0.0
    assert await views.snapshot() is not first


async def test_a_request_is_explained_or_not_known():
    _, _, views = watched(700)
    found = await views.explain(RequestId("r3"))
    assert found is not None and found.known.turn == "r3"
    assert await views.explain(RequestId("r9999")) is None


async def test_without_a_ring_there_are_no_turns():
    play, _, _ = watched(2)
    views = Views(play.brain, None, {}, {}, clock=time.monotonic)
    told = json.loads(await views.snapshot())
    assert told["seq"] == 0 and [each["last_turns"] for each in told["sessions"]] == [[], []]
    assert await views.explain(RequestId("r1")) is None and views.graphs() == []


async def test_somebody_looks_for_as_long_as_somebody_asks():
    _, _, views = watched(1)
    now = 0.0
    views._clock = lambda: now
    assert not views.is_looked_at
    for ask in (views.snapshot, views.gauges):
        told = ask()
        if not isinstance(told, bytes):
            await told
        assert views.is_looked_at
        now += 11.0
        assert not views.is_looked_at
