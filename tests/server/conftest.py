import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from gateway.server import app, listener
from tests.server.bench import Bench

StartBench = Callable[..., Awaitable[Bench]]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What the gateway itself runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StartBench]:
    """Starts a bench; when the test is over, its books are checked."""
    # Timeouts are looked after once a second; tests have less time.
    monkeypatch.setattr(app, "_SWEEP_PERIOD_S", 0.05)
    monkeypatch.setattr(listener, "_SWEEP_PERIOD_S", 0.05)
    benches: list[Bench] = []

    async def start_bench(**settings: Any) -> Bench:
        bench = Bench()
        await bench.start(**settings)
        benches.append(bench)
        return bench

    yield start_bench
    for bench in benches:
        await bench.finish()
