"""Snapshots and explanations in slices, so that requests go on in between."""

import asyncio
import json
import time

from gateway.core.commands import Dispatch, Refuse, SendHint
from gateway.dashboard.views import Views
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId, RequestId
from gateway.telemetry.ring import Ring
from tests.core.playbook import Playbook, arrived, finished, first_token, started, stated
from tests.telemetry.lines import as_lines


def watched(sessions: int, **settings):
    play = Playbook(max_running_per_replica=10_000, **settings)
    for number in range(sessions):
        name = f"r{number}"
        for event in (arrived(name, explicit=stated(name)), started(name), first_token(name), finished(name)):
            told = play.brain.handle(event, now=play.now)  # not looking at the books each time
            play.records += [each for each in told if not isinstance(each, Dispatch | Refuse | SendHint)]
    ring = Ring(100_000)
    ring.extend(*as_lines(play.records))
    signals = {ReplicaId("a"): EngineSignals(kv_used=0.5, waiting=3)}
    return play, ring, Views(play.brain, ring, signals, clock=time.monotonic)


async def test_a_snapshot_is_bounded_and_never_holds_up_the_loop():
    play, ring, views = watched(1500)
    longest_s, is_done = 0.0, False

    async def others() -> None:
        nonlocal longest_s
        then = time.thread_time()
        while not is_done:
            await asyncio.sleep(0)
            longest_s, then = max(longest_s, time.thread_time() - then), time.thread_time()

    going_on = asyncio.ensure_future(others())
    began = time.thread_time()
    told = json.loads(await views.snapshot())
    took_s = time.thread_time() - began
    is_done = True
    await going_on
    assert len(told["sessions"]) == 1000 and told["session_count"] == 1500 and told["seq"] == ring.last
    assert told["sessions"][0]["id"] == play.session.id, "the newest first"
    assert told["sessions"][0]["last_turns"][0]["turn"] == "r1499"
    assert told["replicas"][0]["kv_used"] == 0.5 and told["replicas"][0]["engine_waiting"] == 3
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
    views = Views(play.brain, None, {}, clock=time.monotonic)
    told = json.loads(await views.snapshot())
    assert told["seq"] == 0 and [each["last_turns"] for each in told["sessions"]] == [[], []]
    assert await views.explain(RequestId("r1")) is None and views.graphs() == []
