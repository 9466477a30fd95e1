"""The watch over replicas: it begins with membership, ends with it, and tells what it finds."""

import pytest

from tests.server.bench import eventually, get
from tests.server.test_members import up


@pytest.mark.slow
async def test_who_goes_down_is_asked_for_no_signals_and_shown_with_none(start):
    bench = await start(upstream={"engine_period_s": 0.05, "health_period_s": 0.05})
    bench.backend.metrics = b'vllm:num_requests_running{engine="0"} 3.0\n'
    watch, signals = bench.gateway.replica_watch, bench.gateway.observation._signals
    await eventually(lambda: "default-0" in signals)
    await bench.backend.close()
    await eventually(lambda: not up(bench))
    assert "default-0" not in signals and not watch._engines._engines
    await bench.backend.open()
    await eventually(lambda: up(bench) and "default-0" in signals)
    assert (await bench.control(get(b"/turnpike/readyz"))).status == 200
