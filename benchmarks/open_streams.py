"""A thousand streams open at once, each with ten events a second: memory, fairness, event-loop lag.

Four engines with 250 streams each, every one giving all of its streams an event in the same step, four
steps evenly spread over 100 ms. Clients note when each event arrives; `watch` looks at the gateway from
outside, from when the last stream is open until before the first one ends.
"""

import asyncio
import random
import statistics
import subprocess
import time
from array import array
from pathlib import Path
from typing import Final, cast

import httptools
import msgspec
import uvloop

from benchmarks.conversations import Conversation
from benchmarks.peers import turnpike
from benchmarks.processes import Pinning, on_cpus, upstream, used_so_far
from benchmarks.verdict import percentile
from benchmarks.watch import Watched, result_of, start_watching

STREAMS: Final = 1000
ENGINES: Final = 4
INTERVAL_MS: Final = 100
_RAMP_S: Final = 3.0
_MARGIN_S: Final = 1.0
_BASELINE_S: Final = 3.0
_EVENT: Final = b"data: {"
_END: Final = b"data: [DONE]\n\n"


class Report(msgspec.Struct, kw_only=True):
    rss_mib: float
    """The most that was seen."""
    rss_growth_percent: float
    """From the first minute to the last, or third of the time if that is less; of the means."""
    lag_p99_ms: float
    lag_max_ms: float
    gap_p99_ms: float
    """Between two events of a stream, over all streams; 100 is what was sent."""
    worst_stream_gap_p99_ms: float
    gap_max_ms: float
    failures: int
    events: int
    core_share: float
    """Of the time, how much the gateway ran."""
    strangers_share: float
    """And how much its core ran something else, which shows as lag."""


class OpenStream(asyncio.Protocol):
    """One client with one stream. `over` is done at its end, however it ends."""

    def __init__(self, request: list[bytes | memoryview], events: int) -> None:
        self._request = request
        self._expected = events
        self._parser = httptools.HttpResponseParser(self)
        self._last = 0.0
        self._tail = b""
        self.events = 0
        self.gaps_ms = array("f")
        self.is_noting = False
        self.is_whole = False
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).writelines(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        count = data.count(_EVENT)
        if self.is_noting and count:
            self.gaps_ms.append((now - self._last) * 1e3)
            self.gaps_ms.extend([0.0] * (count - 1))
        self._last = now
        self.events += count
        self._parser.feed_data(data)

    def on_body(self, part: bytes) -> None:
        self._tail = part

    def on_message_complete(self) -> None:
        is_ok = self._parser.get_status_code() == 200
        self.is_whole = is_ok and self.events == self._expected and self._tail.endswith(_END)
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


def measure_open_streams(seed: int, pinning: Pinning, directory: Path, *, seconds: float) -> Report:
    events = int((seconds + _RAMP_S + _MARGIN_S) * 1e3 / INTERVAL_MS)
    agents = [
        Conversation(random.Random(seed + n), first_bytes=2000, turn_bytes=400, turns=1, stream=True)
        for n in range(16)
    ]
    with (
        upstream(pinning, engines=ENGINES, events=events, interval_ms=INTERVAL_MS) as backends,
        turnpike(backends, pinning, directory) as gateway,
        on_cpus(pinning.others),
    ):
        assert gateway.process is not None
        pid, control = gateway.process.pid, gateway.control_port
        time.sleep(1.0)  # the gateway looks at its replicas first
        usual_ms = statistics.median(result_of(start_watching(pid, control, _BASELINE_S)).probe_ms)
        core = min(pinning.gateway)
        before = used_so_far(pid, core)
        streams, watching = uvloop.run(_run(gateway.port, agents, events, pid, control, seconds))
        after = used_so_far(pid, core)
        wall_s, cpu_s, busy_s = (new - old for new, old in zip(after, before, strict=True))
        shares = cpu_s / wall_s, max(0.0, busy_s - cpu_s) / wall_s
        return _report(streams, result_of(watching), usual_ms, shares)


async def _run(
    port: int, agents: list[Conversation], events: int, pid: int, control_port: int, seconds: float
) -> tuple[list[OpenStream], subprocess.Popen[bytes]]:
    loop = asyncio.get_running_loop()
    streams: list[OpenStream] = []
    start = loop.time()
    for number in range(STREAMS):
        await asyncio.sleep(start + number * _RAMP_S / STREAMS - loop.time())
        stream = OpenStream(agents[number % len(agents)].request(None), events)
        await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", port)  # type: ignore[misc]
        streams.append(stream)
    watching = start_watching(pid, control_port, seconds)
    for stream in streams:
        stream.is_noting = stream.events > 0
    await asyncio.wait([stream.over for stream in streams], timeout=seconds * 1.5 + 30)
    return streams, watching


def _report(
    streams: list[OpenStream], watched: Watched, usual_ms: float, shares: tuple[float, float]
) -> Report:
    third = max(1, min(60, len(watched.rss_mib) // 3))
    first, last = statistics.mean(watched.rss_mib[:third]), statistics.mean(watched.rss_mib[-third:])
    lags = [max(0.0, probe - usual_ms) for probe in watched.probe_ms]
    noted = [stream.gaps_ms for stream in streams if stream.gaps_ms] or [array("f", [0.0])]
    gaps = array("f")
    for each in noted:
        gaps.extend(each)
    return Report(
        rss_mib=max(watched.rss_mib),
        rss_growth_percent=(last / first - 1) * 100,
        lag_p99_ms=percentile(lags, 99),
        lag_max_ms=max(lags),
        gap_p99_ms=percentile(gaps, 99),
        worst_stream_gap_p99_ms=max(percentile(each, 99) for each in noted),
        gap_max_ms=max(gaps),
        failures=sum(not stream.is_whole for stream in streams),
        events=sum(stream.events for stream in streams),
        core_share=shares[0],
        strangers_share=shares[1],
    )
