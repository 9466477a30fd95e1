"""Streams that are open all at once: memory, fairness, event-loop lag.

    python -m benchmarks.open_streams [--quick] [--json] [--streams N] [--per-s R] [--seconds T]

Each engine gives all of its streams an event in the same step; engines' steps are spread over the interval.
Clients note when each event arrives; `watch` looks at the gateway from outside, from when the last stream is
open until before the first one ends. By default 10,000 streams with ten events a second each, for ten
minutes. Load and upstream, which are Python too, share one core: `generator_share` says whether they kept up.
A stream is starved if once nothing comes for five times as long as an event should take.
`cores_at_10_per_s`: what the gateway would need for ten events a second, by what one took. Needs Linux.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, cast

import httptools
import msgspec
import uvloop

from benchmarks.answers import StreamParts
from benchmarks.command import judged
from benchmarks.conversations import Conversation
from benchmarks.peers import Gateway, turnpike
from benchmarks.processes import ROOT, Pinning, allow_many_connections, on_cpus, upstream, used_so_far
from benchmarks.verdict import Verdict, percentile
from benchmarks.watch import Watched, result_of, start_watching

_OF_AN_ENGINE: Final = 250
"""Streams: a gateway lets no more than 256 run on one."""
_RAMPED_PER_S: Final = 500.0
"""Streams that are opened."""
_MARGIN_S: Final = 1.0
_PATIENCE_S: Final = 10.0
"""For the first events of those that were opened last."""
_BASELINE_S: Final = 3.0
_STARVED: Final = 5
"""Events missed in a row."""
_EVENT: Final = b"data: {"
_END: Final = b"data: [DONE]\n\n"


Used = tuple[float, float, float]
"""Seconds: by the clock, that the gateway ran, and that its core was busy."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    streams: int
    per_s: float
    """Events of each."""
    seconds: float

    @property
    def engines(self) -> int:
        return max(4, -(-self.streams // _OF_AN_ENGINE))

    @property
    def ramp_s(self) -> float:
        return self.streams / _RAMPED_PER_S


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


def measure(plan: Plan, seed: int, verdict: Verdict) -> None:
    allow_many_connections()
    pinning, make = Pinning.of_this_machine(), random.Random
    events = int((plan.seconds + plan.ramp_s + _PATIENCE_S + _MARGIN_S) * plan.per_s)
    agents = [
        Conversation(make(seed + number), first_bytes=2000, turn_bytes=400, turns=1, stream=True)
        for number in range(16)
    ]
    cache = ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=cache, prefix="open-streams-") as name,
        upstream(pinning, engines=plan.engines, events=events, interval_ms=1e3 / plan.per_s) as backends,
        turnpike(backends, pinning, Path(name)) as gateway,
        on_cpus(pinning.others),
    ):
        assert gateway.process is not None
        pid, core = gateway.process.pid, min(pinning.gateway)
        time.sleep(1.0)  # the gateway looks at its replicas first
        idle = result_of(start_watching(pid, gateway.control_port, _BASELINE_S))
        used = partial(used_so_far, pid, core)
        streams, watching, took = uvloop.run(_run(gateway, agents, events, used, plan))
        judge(plan, streams, result_of(watching), idle, took, verdict)


async def _run(
    gateway: Gateway, agents: list[Conversation], events: int, used: Callable[[], Used], plan: Plan
) -> tuple[list[OpenStream], "subprocess.Popen[bytes]", Used]:
    """The streams, who watched, and what was used while all were open."""
    assert gateway.process is not None
    loop = asyncio.get_running_loop()
    streams: list[OpenStream] = []
    start = loop.time()
    expected = StreamParts(events).events
    for number in range(plan.streams):
        await asyncio.sleep(start + number / _RAMPED_PER_S - loop.time())
        stream = OpenStream(agents[number % len(agents)].request(), expected)
        await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", gateway.port)  # type: ignore[misc]
        streams.append(stream)
    until = loop.time() + _PATIENCE_S
    while loop.time() < until and not all(stream.events for stream in streams):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    watching = start_watching(gateway.process.pid, gateway.control_port, plan.seconds)
    before = used()
    for stream in streams:
        stream.is_noting = stream.events > 0
    await asyncio.sleep(plan.seconds)
    wall_s, cpu_s, busy_s = (after - then for after, then in zip(used(), before, strict=True))
    for stream in streams:
        stream.is_noting = False
    await asyncio.wait([stream.over for stream in streams], timeout=plan.seconds * 0.5 + 30)
    return streams, watching, (wall_s, cpu_s, busy_s)


def judge(
    plan: Plan, streams: list[OpenStream], watched: Watched, idle: Watched, used: Used, verdict: Verdict
) -> None:
    """`rss_kib`: of each stream; `rss_growth_percent`: of the means, from the first minute to the last, or
    third of the time if that is less; gaps are those between two events of a stream; `generator_share`: of
    the events that were due, those that came; `strangers_share`: what else ran on the gateway's core, which
    shows as lag."""
    third = max(1, min(60, len(watched.rss_mib) // 3))
    first, last = statistics.mean(watched.rss_mib[:third]), statistics.mean(watched.rss_mib[-third:])
    usual_ms = statistics.median(idle.probe_ms)
    lags = [max(0.0, probe - usual_ms) for probe in watched.probe_ms]
    noted = [stream.gaps_ms for stream in streams if stream.gaps_ms] or [array("f", [0.0])]
    gaps = array("f", itertools.chain.from_iterable(noted))
    wall_s, cpu_s, busy_s = used
    starved = sum(max(each) > _STARVED * 1e3 / plan.per_s for each in noted) + plan.streams - len(noted)
    verdict.at_most("rss_kib", (max(watched.rss_mib) - max(idle.rss_mib)) * 1024 / plan.streams, 40)
    verdict.at_most("rss_growth_percent", (last / first - 1) * 100, 5)
    verdict.at_most("lag_p99_ms", percentile(lags, 99), 50)
    verdict.tell("lag_max_ms", max(lags))
    verdict.tell("gap_p99_ms", percentile(gaps, 99))
    verdict.tell("worst_stream_gap_p99_ms", max(percentile(each, 99) for each in noted))
    verdict.tell("gap_max_ms", max(gaps))
    verdict.at_most("starved", starved, 0)
    verdict.at_most("failures", sum(not stream.is_whole for stream in streams), 0)
    verdict.tell("events", sum(stream.events for stream in streams))
    verdict.tell("cpu_us_an_event", cpu_s / len(gaps) * 1e6)
    verdict.tell("cores_at_10_per_s", plan.streams * 10 * cpu_s / len(gaps))
    verdict.tell("core_share", cpu_s / wall_s)
    verdict.tell("strangers_share", max(0.0, busy_s - cpu_s) / wall_s)
    verdict.at_least("generator_share", len(gaps) / (plan.streams * plan.per_s * plan.seconds), 0.95)


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--streams", type=int, default=10_000, help="open at once (default: 10000)")
    own.add_argument("--per-s", type=float, default=10.0, help="events of each (default: 10)")
    own.add_argument("--seconds", type=float, help="open all together (default: 600, or 20)")
    own.add_argument("--seed", type=int, default=1, help="of the conversations (default: 1)")
    options, _ = own.parse_known_args(argv)

    def measured(is_quick: bool, verdict: Verdict, _: object) -> None:
        seconds = options.seconds or (20.0 if is_quick else 600.0)
        measure(Plan(streams=options.streams, per_s=options.per_s, seconds=seconds), options.seed, verdict)

    return judged(__file__, __doc__, measured, quick="for 20 seconds", own=own, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
