"""A probe beside tools, and what the gateway makes of what it says."""

import asyncio
import json
import urllib.error

import pytest

from gateway.domain.host import HostSignals
from gateway.upstream.host_probe import look, tell


async def test_a_probe_tells_the_gateway(start):
    bench = await start()
    url = f"http://127.0.0.1:{bench.gateway.control_port}"
    await asyncio.to_thread(tell, url, "tools 1", HostSignals(cores=4, runnable=12), key=None)
    reading = bench.brain.admission._cpu.read(now=0.0)
    assert reading.host_load == 3.0 and reading.cores == 4
    assert look().stat


@pytest.mark.parametrize(
    "signals", [{"cores": 0, "runnable": 1}, {"cores": 1}, [], {"cores": 1, "runnable": "x"}]
)
async def test_what_is_no_report_is_refused(start, signals):
    bench = await start()
    url = f"http://127.0.0.1:{bench.gateway.control_port}"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        await asyncio.to_thread(tell, url, "h", json.loads(json.dumps(signals)), key=None)
    assert bench.brain.admission._cpu.read(now=0.0).cores == 0
