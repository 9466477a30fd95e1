"""What the store of several gateways costs: `python -m benchmarks.store [--json] [--entries N]`.

Starts a redis-server (from PATH or `.cache/programs`) and a local server, each a process of its own, and
asks them from this one: for 4 keys at a time, one call after the other and 50 at once, and to write behind.
Then it fills them: what does an entry of a 16-byte key and a 24-byte value take? Then it asks two gateways,
one of which has the store, in turns to begin a conversation: what do its one look-up and what it publishes
add?
"""

import argparse
import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import redis
import uvloop

from benchmarks.dialects import MODEL
from benchmarks.gateway import gateway_process
from benchmarks.processes import Pinning, cpu_seconds, upstream
from gateway.shared_state.local_server import LocalServer
from gateway.shared_state.opening import open_store
from gateway.shared_state.protocol import Entry, Store
from scripted_engine.guardian import guard

FINDS, KEYS = 5_000, 4
WARM_UP = 200
FETCHED = Path(__file__).resolve().parents[1] / ".cache/programs/bin"


def entry(number: int) -> Entry:
    return Entry(b"%016d" % number, b"v" * 24, 3600.0)


async def measure(url: str) -> dict[str, float]:
    store = await open_store(url, time.monotonic, deadline_s=1.0)
    if not store.is_up:
        raise SystemExit(f"{url} does not answer")
    await fill(store, 0, 10_000)

    async def find(number: int) -> float:
        began = time.perf_counter()
        found = await store.find([b"%016d" % (number * KEYS + key) for key in range(KEYS)])
        assert None not in found
        return (time.perf_counter() - began) * 1e6

    async def one_by_one() -> None:
        took.extend([await find(number % 2000) for number in range(FINDS)])

    async def many_at_once() -> None:
        for _ in range(FINDS // 50):
            await asyncio.gather(*[find(number) for number in range(50)])

    took: list[float] = []
    _, find_cpu_us = await cost_us(one_by_one, FINDS)
    many_wall_us, many_cpu_us = await cost_us(many_at_once, FINDS)
    write_wall_us, write_cpu_us = await cost_us(lambda: fill(store, 0, 100_000), 100_000)
    assert store.counters.dropped_writes == store.counters.failures == store.counters.timeouts == 0
    await store.aclose()
    return {
        "find_median_us": statistics.median(took),
        "find_p99_us": statistics.quantiles(took, n=100)[-1],
        "find_own_cpu_us": find_cpu_us,
        "find_of_50_at_once_us": many_wall_us,
        "find_of_50_at_once_own_cpu_us": many_cpu_us,
        "publish_us": write_wall_us,
        "publish_own_cpu_us": write_cpu_us,
    }


async def cost_us(work: Callable[[], Awaitable[None]], times: int) -> tuple[float, float]:
    """Wall time and this process's CPU time, each."""
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    return (time.perf_counter() - wall) * 1e6 / times, (time.process_time() - cpu) * 1e6 / times


async def fill(store: Store, first: int, count: int) -> None:
    for start in range(first, first + count, 5_000):
        store.publish([entry(number) for number in range(start, min(start + 5_000, first + count))])
        await store.flush()


async def fill_at(url: str, first: int, count: int) -> None:
    store = await open_store(url, time.monotonic, deadline_s=1.0)
    await fill(store, first, count)
    assert store.counters.dropped_writes == 0
    await store.aclose()


@contextmanager
def redis_server(directory: str) -> Iterator[tuple[str, redis.Redis]]:
    program = shutil.which("redis-server") or os.fspath(FETCHED / "redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
    # The title would overwrite the environment by which the guardian knows it.
    with subprocess.Popen([*command, "--set-proc-title", "no"], stdout=subprocess.DEVNULL) as server:
        with redis.Redis(port=port) as admin:
            while True:
                try:
                    admin.ping()
                    break
                except redis.ConnectionError:
                    time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}", admin
        server.kill()


@contextmanager
def local_server(directory: str) -> Iterator[tuple[str, int]]:
    path = f"{directory}/own/store.sock"
    command = [sys.executable, "-m", "benchmarks.store", "--serve", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        yield f"unix://{path}", server.pid
        server.kill()


async def serve(path: str) -> None:
    await LocalServer(path, time.monotonic, max_entries=10_000_000).start()
    print(flush=True)
    await asyncio.Event().wait()


def added_ms(store_url: str, directory: str, requests: int) -> dict[str, float]:
    """What the store adds to a request that begins something. Both gateways have one upstream, which takes no
    time."""
    with ExitStack() as stack:
        (port,) = stack.enter_context(upstream(Pinning.of_this_machine()))
        started = {
            name: stack.enter_context(
                gateway_process([f"http://127.0.0.1:{port}"], Path(directory) / name, settings)
            )
            for name, settings in (("alone", ""), ("shared", f'[shared]\nurl = "{store_url}"\n'))
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
    times = {name: statistics.quantiles(each[WARM_UP:], n=20) for name, each in took.items()}
    return {
        "alone_median_ms": times["alone"][9],
        "added_median_ms": times["shared"][9] - times["alone"][9],
        "added_p5_ms": times["shared"][0] - times["alone"][0],
        "added_cpu_us": (used_s["shared"] - used_s["alone"]) / requests * 1e6,
    }


def begin_conversation(client: HTTPConnection, number: int) -> float:
    """Milliseconds."""
    messages = [{"role": "user", "content": f"Task {number}: say what is wrong with this module. " * 20}]
    body = json.dumps({"model": MODEL, "messages": messages}).encode()
    began = time.perf_counter()
    client.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = client.getresponse()
    response.read()
    if response.status != 200:
        raise SystemExit(f"status {response.status}")
    return (time.perf_counter() - began) * 1e3


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--entries", type=int, default=1_000_000, help="to fill a store with")
    parser.add_argument("--requests", type=int, default=3_000, help="to each of two gateways")
    parser.add_argument("--serve", metavar="PATH", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve(arguments.serve))
    guard()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        with redis_server(directory) as (url, admin):
            figures["redis"] = uvloop.run(measure(url))
            admin.flushall()
            before = admin.info("memory")["used_memory"]
            uvloop.run(fill_at(url, 0, arguments.entries))
            taken = admin.info("memory")["used_memory"] - before
            figures["redis"]["bytes_per_entry"] = taken / arguments.entries
            admin.flushall()
            figures["request"] = added_ms(url, directory, arguments.requests)
        with local_server(directory) as (url, pid):
            figures["local"] = uvloop.run(measure(url))
            before = resident_bytes(pid)
            uvloop.run(fill_at(url, 1_000_000, arguments.entries))
            figures["local"]["bytes_per_entry"] = (resident_bytes(pid) - before) / arguments.entries
    if arguments.json:
        print(json.dumps(figures))
        return
    for store, values in figures.items():
        for name, value in values.items():
            print(f"{store:7} {name:30} {value:9.2f}")


if __name__ == "__main__":
    main()
