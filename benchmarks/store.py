"""What the store of several gateways costs: `python -m benchmarks.store [--json] [--entries N] [FILE...]`.

Starts a redis-server (from PATH or `.cache/programs`), a process of its own, and asks it from this one: for
4 keys at a time, one call after the other and 50 at once, and to write behind. Then it fills it: what does
an entry of a 16-byte key and a 24-byte value take? Then it asks two gateways, one of which has the store, in
turns to begin a conversation: what do its one look-up and what it publishes add? Of recordings (FILE) it says
how much one gateway tells the others of what it learned, and how long others take to learn it.
"""

import argparse
import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
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
from gateway.core import events as ev
from gateway.core.commands import Command
from gateway.domain.ids import TenantId
from gateway.domain.lessons import PERIOD_S, Notes, ToolRan, read
from gateway.shared_state.lessons import Lessons
from gateway.shared_state.opening import open_store
from gateway.shared_state.protocol import Entry, Store
from lab.evaluation.recording import read_recording
from lab.evaluation.replay import Replay, recorded_brain
from scripted_engine.guardian import guard

FINDS, KEYS = 5_000, 4
ROUNDS = 100
WARM_UP = 200
FETCHED = Path(__file__).resolve().parents[1] / ".cache/programs/bin"


def entry(number: int) -> Entry:
    return Entry(b"%016d" % number, b"v" * 24, 3600.0)


async def measure(url: str) -> dict[str, float]:
    store = await open_store(url, deadline_s=1.0)
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
    teacher, pupil, batch = Lessons(store, "a", ()), Lessons(store, "b", ("a",)), a_full_batch()

    async def teach() -> None:
        for _ in range(ROUNDS):
            teacher.publish(batch)
            await store.flush()
            async for _ in pupil.receive():
                pass

    lessons_wall_us, lessons_cpu_us = await cost_us(teach, ROUNDS)
    assert pupil.received == ROUNDS * len(read(batch)) and not pupil.missed
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
        "full_batch_of_lessons_us": lessons_wall_us,
        "full_batch_of_lessons_own_cpu_us": lessons_cpu_us,
    }


def a_full_batch() -> bytes:
    notes = Notes()
    while not notes.dropped:
        notes.note(TenantId("tenant"), ToolRan(notes.noted, "bash", 1.5, 200.0, has_failed=False))
    return notes.take()


class Learning(Replay):
    """By one of several gateways."""

    def __init__(self, path: Path) -> None:
        super().__init__(read_recording(path), without_ids=False)
        self.brain = recorded_brain(now=0.0, publishes=True)
        self.batches: list[bytes] = []
        self._due_s = 0.0

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        if now >= self._due_s:
            self._due_s = now + PERIOD_S
            self.take()
        return super().handle(event, now=now)

    def take(self) -> None:
        assert self.brain.taught.notes is not None
        self.batches.append(self.brain.taught.notes.take())


def lessons_of(files: list[Path]) -> dict[str, float]:
    turns = size = largest = count = 0
    took_s = 0.0
    for path in files:
        learning = Learning(path)
        turns += len(learning.run())
        learning.take()
        size += sum(map(len, learning.batches))
        largest = max(largest, *map(len, learning.batches))
        pupil = recorded_brain(now=0.0)
        for number, batch in enumerate(learning.batches):
            began_s = time.perf_counter()
            lessons = tuple(read(batch))
            pupil.handle(ev.LessonsReceived(lessons), now=number * PERIOD_S)
            took_s += time.perf_counter() - began_s
            count += len(lessons)
    return {
        "turns": turns,
        "lessons_per_turn": count / turns,
        "bytes_per_turn": size / turns,
        "largest_batch": largest,
        "learn_us_per_turn": took_s * 1e6 / turns,
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
    store = await open_store(url, deadline_s=1.0)
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--entries", type=int, default=1_000_000, help="to fill a store with")
    parser.add_argument("recordings", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--requests", type=int, default=3_000, help="to each of two gateways")
    arguments = parser.parse_args()
    guard()
    figures: dict[str, dict[str, float]] = {}
    if arguments.recordings:
        figures["taught"] = lessons_of(arguments.recordings)
    with tempfile.TemporaryDirectory() as directory, redis_server(directory) as (url, admin):
        figures["redis"] = uvloop.run(measure(url))
        admin.flushall()
        before = admin.info("memory")["used_memory"]
        uvloop.run(fill_at(url, 0, arguments.entries))
        taken = admin.info("memory")["used_memory"] - before
        figures["redis"]["bytes_per_entry"] = taken / arguments.entries
        admin.flushall()
        figures["request"] = added_ms(url, directory, arguments.requests)
    if arguments.json:
        print(json.dumps(figures))
        return
    for store, values in figures.items():
        for name, value in values.items():
            print(f"{store:7} {name:30} {value:9.2f}")


if __name__ == "__main__":
    main()
