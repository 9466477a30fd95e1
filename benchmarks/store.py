"""What the store of several gateways costs.

    python -m benchmarks.store [--quick] [--json] [--entries N] [--requests N]

Starts a redis-server (from PATH or `.cache/programs`), a process of its own, and asks it from this one: for 4
keys at a time, one call after the other and 50 at once, and to write behind. Then it fills it: what does an
entry of a 16-byte key and a 24-byte value take? Then two gateways, one of which has the store, begin
conversations in turns: what do its one look-up and what it publishes add?
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import redis
import uvloop

from benchmarks.command import judged
from benchmarks.dialects import MODEL
from benchmarks.gateway import gateway_process
from benchmarks.processes import ROOT, BenchmarkError, Pinning, cpu_seconds, guarded, upstream
from benchmarks.verdict import Verdict, percentile
from gateway.shared_state.opening import open_store
from gateway.shared_state.protocol import Entry, Store
from scripted_engine.ports import free_port

FINDS, KEYS = 5_000, 4
WARM_UP = 200
FETCHED: Final = ROOT / ".cache/programs/bin"


async def calls(url: str, verdict: Verdict) -> None:
    store = await open_store(url, deadline_s=1.0)
    if not store.is_up:
        raise BenchmarkError(f"{url} does not answer")
    await fill(store, 10_000)
    took: list[float] = []

    async def find(number: int) -> None:
        began = time.perf_counter()
        found = await store.find([b"%016d" % (number * KEYS + key) for key in range(KEYS)])
        assert None not in found
        took.append((time.perf_counter() - began) * 1e6)

    async def one_by_one() -> None:
        for number in range(FINDS):
            await find(number % 2000)

    async def many_at_once() -> None:
        for _ in range(FINDS // 50):
            await asyncio.gather(*[find(number) for number in range(50)])

    _, cpu_us = await cost_us(one_by_one, FINDS)
    verdict.tell("find_median_us", statistics.median(took))
    verdict.tell("find_p99_us", percentile(took, 99))
    verdict.tell("find_own_cpu_us", cpu_us)
    for name, work, times in (
        ("find_of_50_at_once", many_at_once, FINDS),
        ("publish", lambda: fill(store, 100_000), 100_000),
    ):
        wall_us, cpu_us = await cost_us(work, times)
        verdict.tell(f"{name}_us", wall_us)
        verdict.tell(f"{name}_own_cpu_us", cpu_us)
    counters = store.counters
    verdict.at_most("calls_lost", counters.dropped_writes + counters.failures + counters.timeouts, 0)
    await store.aclose()


async def cost_us(work: Callable[[], Awaitable[None]], times: int) -> tuple[float, float]:
    """Wall time and this process's CPU time, each."""
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    return (time.perf_counter() - wall) * 1e6 / times, (time.process_time() - cpu) * 1e6 / times


async def fill(store: Store, count: int) -> None:
    for start in range(0, count, 5_000):
        numbers = range(start, min(start + 5_000, count))
        store.publish([Entry(b"%016d" % number, b"v" * 24, 3600.0) for number in numbers])
        await store.flush()


async def fill_at(url: str, count: int) -> None:
    store = await open_store(url, deadline_s=1.0)
    await fill(store, count)
    await store.aclose()


@contextmanager
def redis_server(directory: str) -> Iterator[tuple[str, redis.Redis]]:
    program, port = shutil.which("redis-server") or os.fspath(FETCHED / "redis-server"), free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
    # The title would overwrite the environment by which the guardian knows it.
    command += ["--set-proc-title", "no"]
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, env=guarded()) as server,
        redis.Redis(port=port) as admin,
    ):
        try:
            while True:
                try:
                    admin.ping()
                    break
                except redis.ConnectionError:
                    time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}", admin
        finally:
            server.kill()


def added(store_url: str, directory: str, requests: int, verdict: Verdict) -> None:
    """What the store adds to a request that begins something. The upstream of both gateways takes no time."""
    secret = Path(directory) / "secret"
    secret.write_text("s" * 32)
    with ExitStack() as stack:
        (port,) = stack.enter_context(upstream(Pinning.of_this_machine()))
        started = {
            name: stack.enter_context(
                gateway_process([f"http://127.0.0.1:{port}"], Path(directory) / name, settings)
            )
            for name, settings in (
                ("alone", ""),
                ("shared", f'[shared]\nurl = "{store_url}"\nsecret_file = "{secret}"\n'),
            )
        }
        clients = {
            name: stack.enter_context(closing(HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]))))
            for name, (url, _) in started.items()
        }
        took: dict[str, list[float]] = {name: [] for name in clients}
        used_s: dict[str, float] = {}
        for number in range(WARM_UP + requests):
            if number == WARM_UP:
                used_s = {name: cpu_seconds(pid) for name, (_, pid) in started.items()}
            for name, client in clients.items():
                took[name].append(begin_conversation(client, number))
        used_s = {name: cpu_seconds(pid) - used_s[name] for name, (_, pid) in started.items()}
    alone, shared = (took[name][WARM_UP:] for name in ("alone", "shared"))
    verdict.tell("request_alone_median_ms", percentile(alone, 50))
    for name, percent in (("median", 50), ("p5", 5)):
        verdict.tell(f"request_added_{name}_ms", percentile(shared, percent) - percentile(alone, percent))
    verdict.tell("request_added_cpu_us", (used_s["shared"] - used_s["alone"]) / requests * 1e6)


def begin_conversation(client: HTTPConnection, number: int) -> float:
    """Milliseconds."""
    messages = [{"role": "user", "content": f"Task {number}: say what is wrong with this module. " * 20}]
    body = json.dumps({"model": MODEL, "messages": messages}).encode()
    began = time.perf_counter()
    client.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = client.getresponse()
    response.read()
    if response.status != 200:
        raise BenchmarkError(f"status {response.status}")
    return (time.perf_counter() - began) * 1e3


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--entries", type=int, default=1_000_000, help="to fill the store with")
    own.add_argument("--requests", type=int, default=3_000, help="to each of two gateways")
    asked, _ = own.parse_known_args(argv)

    def measure(is_quick: bool, verdict: Verdict, _: Any) -> None:
        entries, requests = (each // (10 if is_quick else 1) for each in (asked.entries, asked.requests))
        with tempfile.TemporaryDirectory() as directory, redis_server(directory) as (url, admin):
            uvloop.run(calls(url, verdict))
            admin.flushall()
            before = admin.info("memory")["used_memory"]
            uvloop.run(fill_at(url, entries))
            verdict.tell("bytes_per_entry", (admin.info("memory")["used_memory"] - before) / entries)
            admin.flushall()
            added(url, directory, requests, verdict)

    return judged(__file__, __doc__, measure, quick="a tenth of entries and requests", own=own, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
