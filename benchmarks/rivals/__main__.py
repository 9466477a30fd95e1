"""The same load behind this gateway, behind nothing, and behind the routers that a user would otherwise pick.

    python -m benchmarks.rivals LOAD [--quick] [--json] [--arms NAME,…] [--rounds N] [--rows …]
        [--turnpike-tree PATH] [--sdist vllm-VERSION.tar.gz] [--turns N] [--trace FILE]

Real vLLM servers on the CPU with a tiny model. LOAD is `agents` (`agents.py`), `aiperf` (`chats.py`), or
`multi_turn` (`multi_turn.py`), which needs vLLM's source archive. Arms take turns, A-B-B-A: each second round
goes backwards. Figures are medians over the rounds; ratios have 95 % of their mean, too. AIPerf (1.2 GB) and
the routers are installed from PyPI when they are first needed.
"""

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from benchmarks import peers
from benchmarks.command import judged
from benchmarks.processes import ROOT, BenchmarkError
from benchmarks.rivals import agents, aiperf, chats, multi_turn
from benchmarks.rivals.arms import Arm, arms
from benchmarks.rivals.judging import Figures, judge
from benchmarks.verdict import Verdict

LOADS: Final = {"agents": agents, "aiperf": chats, "multi_turn": multi_turn}


def chosen(options: argparse.Namespace, load: ModuleType) -> dict[str, Arm]:
    """Those that can be had: default ones that cannot be installed are left out, with a line that says so."""
    known = arms(options.turnpike_tree)
    names = options.arms.split(",") if options.arms else load.ARMS
    if unknown := [name for name in names if name not in known]:
        raise BenchmarkError(f"there is no arm {unknown[0]!r}; there are {', '.join(known)}")
    found = {name: known[name] for name in names}
    if any(arm.is_router for arm in found.values()):
        try:
            peers.install_rust_peers()
        except BenchmarkError as error:
            if options.arms:
                raise
            print(f"without routers: {error}", file=sys.stderr, flush=True)
            found = {name: arm for name, arm in found.items() if not arm.is_router}
    return found


def measure(options: argparse.Namespace, verdict: Verdict, tell: Any) -> None:
    load = LOADS[options.load]
    chosen_arms = chosen(options, load)
    names, rounds = list(chosen_arms), options.rounds or (1 if options.quick else load.ROUNDS)
    with ExitStack() as stack:
        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rivals-")))
        play = load.Play(stack, at, options, rounds=rounds)
        for row in play.rows:
            found: dict[str, list[Figures]] = {}
            for number in range(rounds):
                for name in names if number % 2 == 0 else reversed(names):
                    files = Path(tempfile.mkdtemp(dir=at))
                    for key, seen in play.run(name, chosen_arms[name], row, number, files).items():
                        found.setdefault(key, []).append(seen)
                        told = ", ".join(f"{figure} {value:.4g}" for figure, value in seen.items())
                        tell(f"{row}{key}: {told}")
            judge(verdict, row, found, play.bounds(row))


def tree_of(text: str) -> Path:
    tree = Path(text).resolve()
    if not (tree / "gateway/__main__.py").is_file():
        raise argparse.ArgumentTypeError(f"{text} is no checkout of Turnpike")
    return tree


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add = own.add_argument
    add("load", choices=LOADS)
    add("--arms", metavar="NAME,…", help=f"of {', '.join(arms())}")
    add("--rounds", type=int, help="runs of each arm in a row")
    add(
        "--rows",
        help="aiperf: pauses in seconds, conversations at a time, and in all, such as 4,0.15:20:60, or "
        "agentic:8:12; multi_turn: conversations at a time",
    )
    add("--trace", type=Path, help="in Mooncake's format: one more row of aiperf")
    add("--turnpike-tree", type=tree_of, default=ROOT, metavar="PATH", help="the checkout of Turnpike")
    add("--sdist", type=Path, help="vLLM's source archive, of the installed release")
    add("--turns", type=int, default=6, help="of each conversation of AIPerf")
    options, rest = own.parse_known_args(argv)
    options.quick = "--quick" in rest
    return judged(
        __file__,
        __doc__,
        lambda _, verdict, tell: measure(options, verdict, tell),
        quick="one round, and few rows",
        about=f"AIPerf {aiperf.VERSION}, {', '.join(peers.PACKAGES)}, {len(os.sched_getaffinity(0))} cores",
        own=own,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
