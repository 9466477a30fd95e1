"""What the history answers and how quickly, what it costs, and whether it stays within its size.

    python benchmarks/history.py [--quick] [--json]

A store is filled with a million turns, by the writer that a gateway has (`--quick`: with 100,000). Then a
gateway with that store explains turns drawn at random from all of it, idle and while 32 connections keep it
busy; in turns with that the control plane is asked whether it lives, which says how long it takes to answer
anything. Two gateways on one core, one with a history and one without, answer the same load in interleaved
rounds, once with agents of 20 turns and once with sessions of a single turn. Last, three times as much is
written as a store may hold.

Targets: every turn explained, 99 % of them within 200 ms, busy or not; the CPU seconds for a request with a
history at most 1.05 times those without, for agents; nothing dropped; the store within its size at all times.
The last line is one JSON object, name → {value, target, ok}.
"""

import contextlib
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import uvloop

from benchmarks.command import judged
from benchmarks.conversations import Conversation
from benchmarks.load import drive, is_right
from benchmarks.observability import CONNECTIONS, Plan, Watched, measure, started
from benchmarks.processes import BenchmarkError, Pinning, on_cpus, resident_mib, upstream
from benchmarks.verdict import Interval, Verdict, percentile
from gateway.config.history import HistoryConfig
from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId
from gateway.history.writer import Writer
from tests.history.lives import begun, whole

_EXPLAIN_MS: Final = 200.0
_SMALL_MB: Final = 64
_AT_ONCE: Final = 500
"""Turns that are handed to the writer before it is waited for."""
_WITHIN_S: Final = 900.0


class Size(msgspec.Struct, frozen=True, kw_only=True):
    turns: int
    asked: int
    plan: Plan


FULL = Size(turns=1_000_000, asked=300, plan=Plan(rounds=25, seconds=1.5))
QUICK = Size(turns=100_000, asked=150, plan=Plan(rounds=15, seconds=0.6))


def main(argv: list[str] | None = None) -> int:
    return judged(
        __file__, __doc__, _measure, quick="a tenth of the turns, fewer and shorter rounds", argv=argv
    )


def _measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    size = QUICK if is_quick else FULL
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        _bounded(directory / "small", verdict, tell)
        _explained(directory, size, verdict, tell)
    for kind, turns in (("agents", 20), ("single", 1)):
        with tempfile.TemporaryDirectory() as name:
            _cost(Path(name), kind, turns, size.plan, verdict, tell)


# --- a store that is filled --------------------------------------------------------------------------------


def _filled(path: Path, turns: int, max_mb: int, *, seen: Any = lambda _: None) -> Writer:
    """Closed, and full of sessions of about 20 turns over the last day. `seen` is told now and then."""
    began_s = time.time() - 86_400.0
    writer = Writer(HistoryConfig(path=str(path), max_mb=max_mb, max_pending=200_000), clock=time.time)
    running = {ReplicaId(f"pool-{number}"): number for number in range(8)}
    until = time.monotonic() + _WITHIN_S
    for start in range(0, turns, _AT_ONCE):
        records: list[rec.Record] = []
        for number in range(start, min(turns, start + _AT_ONCE)):
            session = f"s-{number // 20:013d}"
            at_s = began_s + number * 86_400.0 / turns
            if number % 20 == 0:
                records += begun(session, at_s)
            records += whole(f"r-bench0{number:x}", session, at_s, replica=ReplicaId(f"pool-{number % 8}"))
        writer.take(records, running)
        while writer.written < start - 20 * _AT_ONCE and time.monotonic() < until:
            time.sleep(0.01)
            seen(writer)
        seen(writer)
    writer.close(60.0)
    if writer.written + writer.dropped < turns:
        raise BenchmarkError(f"only {writer.written} turns were written")
    return writer


def _bounded(path: Path, verdict: Verdict, tell: Any) -> None:
    largest = 0

    def look(_: Writer) -> None:
        nonlocal largest
        with contextlib.suppress(FileNotFoundError):
            largest = max(largest, sum(each.stat().st_size for each in path.iterdir()))

    turns = 3 * (_SMALL_MB << 20) // 600
    writer = _filled(path, turns, _SMALL_MB, seen=look)
    tell(f"{turns} turns into {_SMALL_MB} MB: at most {largest / 2**20:.1f} MB were there")
    verdict.at_most("size_of_limit", largest / (_SMALL_MB << 20), 1.0)
    verdict.at_most("turns_dropped", writer.dropped, 0)


# --- explanations ------------------------------------------------------------------------------------------


def _explained(directory: Path, size: Size, verdict: Verdict, tell: Any) -> None:
    began = time.monotonic()
    writer = _filled(directory / "history", size.turns, 10_000)
    on_disk = sum(each.stat().st_size for each in (directory / "history").iterdir())
    tell(f"{size.turns} turns in {time.monotonic() - began:.0f} s, {on_disk / size.turns:.0f} bytes each")
    verdict.tell("bytes_a_turn", on_disk / size.turns)
    verdict.at_most("turns_dropped_when_filled", writer.dropped, 0)
    rng = random.Random(7)
    asked = [f"turns/r-bench0{rng.randrange(size.turns):x}" for _ in range(size.asked)]
    pages = [f"sessions/s-{rng.randrange(size.turns // 20):013d}" for _ in range(size.asked // 5)]
    with contextlib.ExitStack() as stack:
        pinning = Pinning.of_this_machine()
        [backend] = stack.enter_context(upstream(pinning))
        settings = f'[history]\npath = "{directory}/history"\nmax_mb = 10000\n'
        watched, control = stack.enter_context(started("on", backend, pinning, directory, settings))
        for name, is_busy in (("idle", False), ("busy", True)):
            with _busy(watched.port) if is_busy else contextlib.nullcontext():
                # In turns: how long the gateway takes to answer anything changes by itself.
                both_ms, unanswered = _asked(control, [each for path in asked for each in ("healthz", path)])
                nothing_ms, explain_ms = both_ms[::2], both_ms[1::2]
                more_ms = statistics.median(map(float.__sub__, explain_ms, nothing_ms))
                verdict.tell(f"explain_of_nothing_{name}_ms", more_ms)
                answers = {
                    "nothing": (nothing_ms, 0),
                    "explain": (explain_ms, unanswered),
                    "session": _asked(control, pages),
                    "day": _asked(control, ["history", "history?tenant=t", "history?trouble=1"]),
                }
                for what, (times_ms, unanswered) in answers.items():
                    bound = _EXPLAIN_MS if what == "explain" else None
                    p99 = percentile(times_ms, 99)
                    tell(f"{name}: {what}: median {statistics.median(times_ms):.1f}, p99 {p99:.1f} ms")
                    if bound is None:
                        verdict.tell(f"{what}_{name}_p99_ms", p99)
                    else:
                        verdict.at_most(f"{what}_{name}_p99_ms", p99, bound)
                    verdict.at_most(f"{what}_{name}_unanswered", unanswered, 0)
        verdict.tell("resident_mib", resident_mib(watched.pid))


def _asked(control: int, paths: list[str]) -> tuple[list[float], int]:
    times_ms, unanswered = [], 0
    for path in paths:
        began = time.perf_counter()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{control}/turnpike/{path}", timeout=30) as answer:
                told = json.load(answer)
            unanswered += path.startswith("turns/") and told["decided"]["replica"] is None
        except urllib.error.HTTPError:
            unanswered += 1
        times_ms.append((time.perf_counter() - began) * 1e3)
    return times_ms, unanswered


@contextlib.contextmanager
def _busy(port: int) -> Iterator[None]:
    """By a process of its own: what it computes is not waited for by who asks."""
    process = multiprocessing.get_context("spawn").Process(target=_load, args=(port,), daemon=True)
    process.start()
    time.sleep(3.0)  # it has begun
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _load(port: int) -> None:
    agents = _agents(20)
    while True:
        uvloop.run(drive(port, agents, is_right, warm_up_s=0.0, seconds=5.0))


# --- costs -------------------------------------------------------------------------------------------------


def _agents(turns: int) -> list[Conversation]:
    rng = random.Random(1)
    return [
        Conversation(rng, first_bytes=2000, turn_bytes=400, turns=turns, stream=False)
        for _ in range(CONNECTIONS)
    ]


def _cost(directory: Path, kind: str, turns: int, plan: Plan, verdict: Verdict, tell: Any) -> None:
    pinning = Pinning.of_this_machine()
    agents = _agents(turns)
    with contextlib.ExitStack() as stack:
        [backend] = stack.enter_context(upstream(pinning))
        settings = f'[history]\npath = "{directory}/history"\n'
        on, _ = stack.enter_context(started("on", backend, pinning, directory, settings))
        off, _ = stack.enter_context(started("off", backend, pinning, directory, ""))
        stack.enter_context(on_cpus(pinning.others))
        for number in range(plan.rounds + 1):
            for each in (on, off) if number % 2 else (off, on):
                measure(each, agents, plan)
        for each in (on, off):  # the first round meets cold caches
            del each.outcomes[0], each.cpu_us[0]
    ratios = [ours / theirs for ours, theirs in zip(on.cpu_us, off.cpu_us, strict=True)]
    ratio, median = Interval.of(ratios), statistics.median(ratios)
    tell(
        f"{kind}: {statistics.median(on.cpu_us):.1f} µs of the core a request, "
        f"{statistics.median(off.cpu_us):.1f} without; {median:.3f} times "
        f"(mean {ratio.mean:.3f}, {ratio.low:.3f} to {ratio.high:.3f})"
    )
    if kind == "agents":
        verdict.at_most("cpu_of_without", median, 1.05)
    else:
        verdict.tell(f"cpu_of_without_{kind}", median)
    verdict.tell(f"cpu_of_without_{kind}_high", ratio.high)
    verdict.at_most(f"failures_{kind}", sum(o.failures for each in (on, off) for o in each.outcomes), 0)
    verdict.tell(f"requests_per_s_{kind}", statistics.median(_rates(on)))


def _rates(watched: Watched) -> list[float]:
    return [outcome.answers / outcome.seconds for outcome in watched.outcomes]


if __name__ == "__main__":
    sys.exit(main())
