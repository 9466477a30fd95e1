"""The watch over replicas: it begins with membership, ends with it, and tells what it finds."""

import pytest

from gateway.domain.ids import ReplicaId
from tests.server.bench import eventually, get
from tests.server.test_members import control, registration, up

LATE = ReplicaId("late")


async def test_who_has_left_is_neither_watched_nor_known_any_more(start):
    found = {"registration": True, "ttl_s": 60}
    bench = await start(pools=[{"name": "default", "backends": 1, "discovery": found}])
    watch, late = bench.gateway.replica_watch, await bench.another()
    await bench.control(registration(late.url, name=LATE))
    await eventually(lambda: LATE in up(bench))
    watchers = watch._watchers[LATE]
    assert len(watchers) == 2 and LATE in watch.health._facts and LATE in watch._engines._abilities
    await bench.control(control(b"DELETE", b"/turnpike/replicas/late"))
    await eventually(lambda: all(each.cancelled() for each in watchers))
    known = (watch._watchers, watch.health._facts, watch.health._wake, watch._engines._abilities)
    assert not any(LATE in each for each in known)


@pytest.mark.slow
async def test_who_goes_down_is_asked_for_no_signals_and_shown_with_none(start):
    bench = await start(upstream={"engine_period_s": 0.05, "health_period_s": 0.05})
    bench.backend.metrics = b'vllm:num_requests_running{engine="0"} 3.0\n'
    watch, signals = bench.gateway.replica_watch, bench.gateway.observation.signals
    await eventually(lambda: "default-0" in signals)
    await bench.backend.close()
    await eventually(lambda: not up(bench))
    assert "default-0" not in signals and not watch._engines._abilities
    await bench.backend.open()
    await eventually(lambda: up(bench) and "default-0" in signals)
    assert (await bench.control(get(b"/turnpike/readyz"))).status == 200
