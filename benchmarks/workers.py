"""Several workers behind one port: what does a request cost them together, and how many do they answer?

    python -m benchmarks.workers [--workers 2] [--connections 32] [--rounds 3] [--quick] [--json]

Growing conversations with tool calls, each on a connection of its own from its first turn on, answered whole
by a server that takes no time; one worker, several on a Redis, and as many gateways that share nothing, in
turns. Shown is CPU time a request, of all processes of the gateway, kernel and parent included, Redis apart,
as a ratio to one worker's, round by round. `apart_cpu_to_one_worker` is what further processes cost on this
machine, whatever they do: what workers cost beyond it is what they share. Requests a second are shown, too:
where load, upstream and workers share two cores, they say nothing of what workers could do elsewhere.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.command import judged
from benchmarks.conversations import Conversation
from benchmarks.gateway import gateway_process
from benchmarks.load import drive, is_right
from benchmarks.processes import BenchmarkError, Pinning, cpu_seconds, upstream
from benchmarks.store import redis_server
from benchmarks.verdict import Verdict

FIRST_BYTES, TURN_BYTES, TURNS = 10_000, 6_000, 10
BEGUN_WITHIN_S: Final = 60.0
BEGUN_S: Final = 5.0
"""In which the last worker begins to serve."""
WARM_UP_S: Final = 2.0
"""In which workers learn of one another, and Python of its code."""


def processes_of(pid: int) -> set[int]:
    """The process and all that it started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


async def all_serve(pids: Sequence[int], workers: int) -> None:
    """Each of these has so many workers, and they had the time to begin."""
    if workers == 1:
        return
    async with asyncio.timeout(BEGUN_WITHIN_S):
        while any(len(processes_of(pid)) <= workers for pid in pids):  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.1)
    await asyncio.sleep(BEGUN_S)


class Case(msgspec.Struct, frozen=True):
    title: str
    gateways: int
    workers: int
    """Of each; several share by Redis."""


async def one_round(
    case: Case, engine: int, folder: Path, options: argparse.Namespace
) -> tuple[float, float]:
    """CPU seconds a request, and requests a second."""
    rng = random.Random(7)
    conversations = [
        Conversation(rng, first_bytes=FIRST_BYTES, turn_bytes=TURN_BYTES, turns=TURNS, stream=False)
        for _ in range(options.connections)
    ]
    for at, each in enumerate(conversations):
        each.skip_to(at)
    backend, server, settings = f"http://127.0.0.1:{engine}", f"workers = {case.workers}\n", ""
    with ExitStack() as stack:
        if case.workers > 1:
            redis_folder = stack.enter_context(tempfile.TemporaryDirectory())
            redis_url, _ = stack.enter_context(redis_server(redis_folder))
            settings = f'[shared]\nurl = "{redis_url}"\n'
        started = [
            stack.enter_context(gateway_process([backend], folder / str(number), settings, server=server))
            for number in range(case.gateways)
        ]
        await all_serve([pid for _, pid in started], case.workers)
        found = set[int]().union(*(processes_of(pid) for _, pid in started))
        runs = [
            asyncio.create_task(
                drive(
                    int(url.rpartition(":")[2]),
                    conversations[number :: case.gateways],
                    is_right,
                    warm_up_s=WARM_UP_S,
                    seconds=options.seconds,
                )
            )
            for number, (url, _) in enumerate(started)
        ]
        # Nobody connects anew for what is measured: a session stays with the worker at which it began.
        await asyncio.sleep(WARM_UP_S)
        before_s = sum(map(cpu_seconds, found))
        await asyncio.sleep(options.seconds)
        used_s = sum(map(cpu_seconds, found)) - before_s
        outcomes = await asyncio.gather(*runs)
    answers = sum(outcome.answers for outcome in outcomes)
    for outcome in outcomes:
        if outcome.failures or not outcome.answers:
            raise BenchmarkError(f"{outcome.failures} requests failed, first: {outcome.first_failure}")
    return used_s / answers, answers / options.seconds


def measure(options: argparse.Namespace, is_quick: bool, verdict: Verdict, tell: Any) -> None:
    if is_quick:
        options.rounds, options.seconds = 2, 4.0
    count = options.workers
    one = Case("1 worker", 1, 1)
    several, apart = (
        Case(f"{count} workers", 1, count),
        Case(f"{count} gateways that share nothing", count, 1),
    )
    found: dict[Case, list[tuple[float, float]]] = {each: [] for each in (one, several, apart)}
    with (
        tempfile.TemporaryDirectory() as folder,
        upstream(Pinning.of_this_machine()) as ports,
    ):
        for number in range(options.rounds):
            for case, seen in found.items():
                where = Path(folder) / f"{number}-{case.title}"
                cost_s, rate = asyncio.run(one_round(case, ports[0], where, options))
                seen.append((cost_s, rate))
                tell(f"{case.title}: {cost_s * 1e6:.0f} µs of CPU a request, {rate:.0f} a second")

    def to_one(case: Case, figure: int) -> float:
        """The median of the rounds."""
        pairs = zip(found[case], found[one], strict=True)
        return statistics.median(each[figure] / of_one[figure] for each, of_one in pairs)

    verdict.at_most("cpu_to_one_worker", to_one(several, 0), 1.1)
    verdict.tell("rate_to_one_worker", to_one(several, 1))
    verdict.tell("apart_cpu_to_one_worker", to_one(apart, 0))
    verdict.tell("apart_rate_to_one_worker", to_one(apart, 1))


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--workers", type=int, default=2, help="of the one that is compared (default 2)")
    own.add_argument("--connections", type=int, default=32, help="at once (default 32)")
    own.add_argument("--rounds", type=int, default=3, help="of all, in turns (default 3)")
    own.add_argument("--seconds", type=float, default=10.0, help="of each (default 10)")
    options, _ = own.parse_known_args(argv)
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(options, is_quick, verdict, tell),
        quick="two rounds of four seconds",
        own=own,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
