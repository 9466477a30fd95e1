"""Whether a client that asks the history in a loop holds up the gateway, and how soon it answers.

    python benchmarks/history.py [--quick] [--json]

A history that follows a gateway has a million turns (`--quick`: 100,000). The gateway, on a core of its own,
has 200 requests a second; in interleaved rounds a client asks for a day's figures in a loop, of the history
itself or through the gateway, or nobody does. A probe measures how much later than after a millisecond the
gateway's event loop turns (`gap`), and what processor time its thread used meanwhile (`cpu`, which other
processes of the machine do not touch). Targets: p99 of both while the history is asked at most 1.5 times that
of idle rounds; 99 % of turns drawn at random explained within 200 ms. The last line is one JSON object, name
→ {value, target, ok}.
"""

import contextlib
import http.client
import json
import multiprocessing
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from benchmarks.command import judged
from benchmarks.processes import ROOT, BenchmarkError, Pinning, guarded, on_cpus, upstream
from benchmarks.verdict import Verdict, percentile
from gateway.domain.ids import ReplicaId
from gateway.history.store import Batch, Store
from scripted_engine.ports import free_port
from tests.history.lives import begun, whole

_CLIENTS: Final = 4
_PERIOD_S: Final = 0.02
_AT_ONCE: Final = 500  # turns that are stored together
_READY_WITHIN_S: Final = 90.0
_PROBE: Final = """
import array, asyncio, sys, time
from gateway.server.telemetry import Observation
async def watch(self):
    with open({path!r}, "ab") as file:
        while True:
            gaps = array.array("d")
            for _ in range(50):
                began, used = time.perf_counter(), time.thread_time()
                await asyncio.sleep(0.001)
                gaps.extend((began, time.perf_counter() - began - 0.001, time.thread_time() - used))
            gaps.tofile(file)
            file.flush()
Observation._watch_the_loop = watch
from gateway.__main__ import main
sys.exit(main())
"""


class Size(msgspec.Struct, frozen=True):
    turns: int
    rounds: int
    seconds: float
    explained: int


FULL, QUICK = Size(1_000_000, 8, 5.0, 300), Size(100_000, 4, 3.0, 100)


def main(argv: list[str] | None = None) -> int:
    return judged(__file__, __doc__, _measure, quick="a tenth of the turns, shorter rounds", argv=argv)


def _measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    size, pinning = QUICK if is_quick else FULL, Pinning.of_this_machine()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = directory / "history.sqlite"
        began = time.monotonic()
        _fill(path, size.turns)
        verdict.tell("turns_stored_per_s", size.turns / (time.monotonic() - began))
        verdict.tell("bytes_a_turn", path.stat().st_size / size.turns)
        [backend] = stack.enter_context(upstream(pinning))
        client, control, history = free_port(), free_port(), free_port()
        settings = directory / "turnpike.toml"
        settings.write_text(
            f'[server]\nlisten = "127.0.0.1:{client}"\ncontrol = "127.0.0.1:{control}"\n'
            f'[[pools]]\nreplicas = [{{ url = "http://127.0.0.1:{backend}" }}]\n'
            f'[history]\nurl = "http://127.0.0.1:{history}"\n'
        )
        probe = ("-c", _PROBE.format(path=str(directory / "gaps")), "serve", str(settings))
        stack.enter_context(_running(probe, control, pinning.gateway))
        about = ("--path", str(path), "--listen", f"127.0.0.1:{history}", "--max-mb", "100000")
        follows = ("-m", "gateway", "history", "--gateway", f"http://127.0.0.1:{control}", *about)
        stack.enter_context(_running(follows, history, pinning.others))
        stack.enter_context(on_cpus(pinning.others))
        stack.enter_context(_beside(_serve_clients, client))
        time.sleep(3.0)
        asked = {"idle": None, "asked": history, "proxy": control}
        _judge_gaps(size, asked, directory / "gaps", verdict, tell)
        for name, port in (("explain", history), ("explain_by_gateway", control)):
            drawn = random.Random(7).sample(range(size.turns), size.explained)
            times_ms = [_explain(port, f"r-bench{number}") for number in drawn]
            verdict.at_most(f"{name}_p99_ms", percentile(times_ms, 99), 200.0)


def _judge_gaps(size: Size, ports: dict[str, int | None], file: Path, verdict: Verdict, tell: Any) -> None:
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in ports}
    for number in range(size.rounds):
        for name in list(ports) if number % 2 else list(ports)[::-1]:
            port = ports[name]
            with _beside(_ask, port) if port is not None else contextlib.nullcontext():
                time.sleep(0.5)
                began = time.perf_counter()
                time.sleep(size.seconds)
                spans[name].append((began, time.perf_counter()))
    time.sleep(3.0)
    values = array("d", file.read_bytes())
    found = list(zip(values[::3], values[1::3], values[2::3], strict=True))
    for at, kind in ((1, "gap"), (2, "cpu")):
        p99s = {}
        for name, rounds in spans.items():
            each = [
                percentile([1e3 * x[at] for x in found if low <= x[0] < high], 99) for low, high in rounds
            ]
            p99s[name] = statistics.median(each)
            tell(f"{name}: {kind} p99 {' '.join(f'{ms:.2f}' for ms in each)} ms")
            verdict.tell(f"{kind}_{name}_p99_ms", p99s[name])
        for name in ("asked", "proxy"):
            verdict.at_most(f"{kind}_{name}_of_idle", p99s[name] / p99s["idle"], 1.5)


def _fill(path: Path, turns: int) -> None:
    """They end within the last day, and a session has twenty."""
    store, began_s = Store(path, max_bytes=1 << 40, max_age_s=1e9), time.time() - 86_000.0
    for start in range(0, turns, _AT_ONCE):
        lines = []
        for number in range(start, min(turns, start + _AT_ONCE)):
            session, at_s = f"s-{number // 20}", began_s + number * 86_000.0 / turns
            opening = begun(session, at_s) if number % 20 == 0 else []
            turn = whole(f"r-bench{number}", session, at_s, replica=ReplicaId(f"pool-{number % 8}"))
            lines += [msgspec.json.encode(each) for each in (*opening, *turn)]
        store.write("http://filled", Batch(lines, f"life:{start}"))
    store.close()


@contextlib.contextmanager
def _running(arguments: tuple[str, ...], port: int, cores: frozenset[int]) -> Iterator[None]:
    with on_cpus(cores):
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=guarded())
    try:
        until = time.monotonic() + _READY_WITHIN_S
        while True:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/turnpike/readyz"),
            ):
                break
            if time.monotonic() > until or process.poll() is not None:
                raise BenchmarkError(f"{' '.join(arguments[1:3])} did not start")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def _beside(work: Any, port: int) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=work, args=(port,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _serve_clients(port: int) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hm " * 500}]})

    def work() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
            time.sleep(_PERIOD_S)

    for _ in range(_CLIENTS):
        threading.Thread(target=work).start()


def _ask(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while True:
        connection.request("GET", "/turnpike/history")
        connection.getresponse().read()


def _explain(port: int, turn: str) -> float:
    """In ms."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/turnpike/turns/{turn}", timeout=30) as answer:
        if json.load(answer)["became"] is None:
            raise BenchmarkError(f"{turn} is not explained to its end")
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    sys.exit(main())
