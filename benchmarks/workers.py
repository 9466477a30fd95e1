"""Several workers behind one port: what does a request cost them together, and how many do they answer?

    python -m benchmarks.workers [--workers 2] [--connections 32] [--rounds 3] [--quick] [--json]

Growing conversations with tool calls, each on a connection of its own, answered whole by a server that takes
no time; one worker and several in turns. Told is CPU time a request, of all processes of the gateway, kernel
and parent included, as a ratio to one worker's, round by round. Requests a second are told, too: where load,
upstream and workers share two cores, they say nothing of what workers could do elsewhere.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.command import judged
from benchmarks.conversations import Conversation
from benchmarks.gateway import gateway_process
from benchmarks.load import drive, is_right
from benchmarks.processes import BenchmarkError, Pinning, cpu_seconds, upstream
from benchmarks.verdict import Verdict

FIRST_BYTES, TURN_BYTES, TURNS = 10_000, 6_000, 10
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


async def one_round(
    workers: int, engine: int, folder: Path, options: argparse.Namespace
) -> tuple[float, float]:
    """CPU seconds a request, and requests a second."""
    rng = random.Random(7)
    conversations = [
        Conversation(rng, first_bytes=FIRST_BYTES, turn_bytes=TURN_BYTES, turns=TURNS, stream=False)
        for _ in range(options.connections)
    ]
    for at, each in enumerate(conversations):
        each.skip_to(at)
    backend, server = f"http://127.0.0.1:{engine}", f"workers = {workers}\n"
    with gateway_process([backend], folder, server=server) as (url, pid):
        port = int(url.rpartition(":")[2])
        await drive(port, conversations, is_right, warm_up_s=0.0, seconds=WARM_UP_S)
        found = processes_of(pid)
        before_s = sum(map(cpu_seconds, found))
        outcome = await drive(port, conversations, is_right, warm_up_s=0.0, seconds=options.seconds)
        used_s = sum(map(cpu_seconds, found)) - before_s
    if outcome.failures or not outcome.answers:
        raise BenchmarkError(f"{outcome.failures} requests failed, first: {outcome.first_failure}")
    return used_s / outcome.answers, outcome.answers / outcome.seconds


def measure(options: argparse.Namespace, is_quick: bool, verdict: Verdict, tell: Any) -> None:
    if is_quick:
        options.rounds, options.seconds = 2, 4.0
    with (
        tempfile.TemporaryDirectory() as folder,
        upstream(Pinning.of_this_machine()) as ports,
    ):
        ratios, rates = [], []
        for number in range(options.rounds):
            found = {}
            for workers in (1, options.workers):
                where = Path(folder) / f"{number}-{workers}"
                cost_s, rate = found[workers] = asyncio.run(one_round(workers, ports[0], where, options))
                tell(f"{workers} worker(s): {cost_s * 1e6:.0f} µs of CPU a request, {rate:.0f} a second")
            ratios.append(found[options.workers][0] / found[1][0])
            rates.append(found[options.workers][1] / found[1][1])
    verdict.at_most("cpu_to_one_worker", sorted(ratios)[len(ratios) // 2], 1.1)
    verdict.tell("rate_to_one_worker", sorted(rates)[len(rates) // 2])


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--workers", type=int, default=2, help="of the one that is compared (default 2)")
    own.add_argument("--connections", type=int, default=32, help="at once (default 32)")
    own.add_argument("--rounds", type=int, default=3, help="of both, in turns (default 3)")
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
