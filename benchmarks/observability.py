"""What watching costs.

    python -m benchmarks.observability [--quick] [--json]

Gateways on one core, under the same load in interleaved rounds: one that nobody watches, one that everybody
watches (file, ring, traces, metrics scraped every five seconds, a dashboard), and like that those whose
collector hangs or is dead, whose disk is full, and which fifty dashboards watch. Everything on: at least 0.95
× the requests/s of everything off; and nothing that goes wrong with a reader costs more than that.
"""

import contextlib
import random
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from benchmarks.command import judged
from benchmarks.conversations import Conversation
from benchmarks.gateway import running
from benchmarks.load import Outcome, drive, is_right
from benchmarks.processes import Pinning, cpu_seconds, on_cpus, serving, upstream
from benchmarks.verdict import Verdict, percentile, ratios
from scripted_engine.ports import free_port

CONNECTIONS: Final = 32
_SCRAPE_S: Final = 5.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int
    seconds: float


FULL = Plan(rounds=15, seconds=1.5)
QUICK = Plan(rounds=13, seconds=0.5)


class Watched(msgspec.Struct, kw_only=True):
    """A gateway, and who watches it."""

    name: str
    port: int
    pid: int
    outcomes: list[Outcome] = []
    cpu_us: list[float] = []
    """Of the gateway's processor time, for one answer."""


def costs(is_quick: bool, verdict: Verdict, say: Any) -> None:
    plan = QUICK if is_quick else FULL
    pinning = Pinning.of_this_machine()
    rng = random.Random(1)
    agents = [
        Conversation(rng, first_bytes=2000, turn_bytes=400, turns=1, stream=False) for _ in range(CONNECTIONS)
    ]
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        [backend] = stack.enter_context(upstream(pinning))
        watched = _start_all(backend, pinning, directory, stack)
        stack.enter_context(on_cpus(pinning.others))
        for _ in range(plan.rounds):
            for each in watched:
                measure(each, agents, plan)
    off, on, *troubled = watched
    say(f"\n{'':<18}{'requests/s':>12}{'of off':>8}{'p99 ms':>8}{'µs of the core':>16}")
    for each in watched:
        p99s = [percentile(outcome.latencies_ms or [0.0], 99) for outcome in each.outcomes]
        p99 = sorted(p99s)[plan.rounds // 2]
        cpu = sorted(each.cpu_us)[plan.rounds // 2]
        rate = sorted(_rates(each))[plan.rounds // 2]
        say(f"{each.name:<18}{rate:>12.0f}{ratio_of_rates(each, off) or 0.0:>8.3f}{p99:>8.2f}{cpu:>16.1f}")
        name = each.name.replace(" ", "_")
        verdict.tell(f"{name}_requests_per_s", rate)
        verdict.tell(f"{name}_p99_ms", p99)
        verdict.tell(f"{name}_core_us", cpu)
    verdict.at_least("everything_on_of_off", ratio_of_rates(on, off), 0.95)
    for each in troubled:
        verdict.at_least(f"{each.name.replace(' ', '_')}_of_on", ratio_of_rates(each, on), 0.95)
    verdict.at_most("failures", sum(o.failures for each in watched for o in each.outcomes), 0)


def _rates(watched: Watched) -> list[float]:
    return [outcome.answers / outcome.seconds for outcome in watched.outcomes]


def ratio_of_rates(one: Watched, other: Watched) -> float | None:
    """None where half of the rounds or more saw no answers: the machine does something else."""
    pairs = [pair for pair in zip(_rates(one), _rates(other), strict=True) if all(pair)]
    spread = ratios([ours for ours, _ in pairs], [theirs for _, theirs in pairs])
    return spread.median if spread is not None and 2 * len(pairs) > len(one.outcomes) else None


def measure(watched: Watched, agents: list[Conversation], plan: Plan) -> None:
    before = cpu_seconds(watched.pid)
    warm_up_s = plan.seconds * 0.25
    outcome = uvloop.run(drive(watched.port, agents, is_right, warm_up_s=warm_up_s, seconds=plan.seconds))
    used_s = (cpu_seconds(watched.pid) - before) * plan.seconds / (plan.seconds + warm_up_s)
    watched.outcomes.append(outcome)
    watched.cpu_us.append(used_s / max(1, outcome.answers) * 1e6)


def _start_all(backend: int, pinning: Pinning, directory: Path, stack: contextlib.ExitStack) -> list[Watched]:
    watcher = partial(serving, "benchmarks.watchers", cores=pinning.others)

    def collector(delay_s: float) -> int:
        return int(stack.enter_context(watcher("collector", delay_s)))

    def start(name: str, *, file: str | None, endpoint: int | None, tabs: int) -> Watched:
        settings = "[stream]\n" + (f'path = "{file}"\n' if file is not None else "ring_records = 0\n")
        if endpoint is not None:
            settings += f'[otel]\nendpoint = "http://127.0.0.1:{endpoint}/v1/traces"\ntimeout_s = 2\n'
        each, control = stack.enter_context(started(name, backend, pinning, directory, settings))
        if tabs:
            stack.enter_context(watcher("scrape", control, _SCRAPE_S))
            stack.enter_context(watcher("tabs", control, tabs))
        return each

    quick = collector(0)
    path = str(directory / "stream-%s.jsonl")
    return [
        start("off", file=None, endpoint=None, tabs=0),
        start("on", file=path % 1, endpoint=quick, tabs=1),
        start("slow collector", file=path % 2, endpoint=collector(60), tabs=1),
        start("dead collector", file=path % 3, endpoint=free_port(), tabs=1),
        start("full disk", file="/dev/full", endpoint=quick, tabs=1),
        start("fifty dashboards", file=path % 4, endpoint=quick, tabs=50),
    ]


@contextlib.contextmanager
def started(
    name: str, backend: int, pinning: Pinning, directory: Path, settings: str
) -> Iterator[tuple[Watched, int]]:
    """A gateway, and the port of its control plane."""
    backends = [f"http://127.0.0.1:{backend}"]
    at, cores = directory / name, pinning.gateway
    with running(backends, at, settings, server="drain_s = 1\n", cores=cores) as gateway:
        yield Watched(name=name, port=gateway.port, pid=gateway.pid), gateway.control_port


if __name__ == "__main__":
    sys.exit(judged(__file__, __doc__, costs, quick="fewer and shorter rounds"))
