"""How much the brain does for a turn: calls of Python functions, and distinct functions, by package.

    python -m benchmarks.calls [--quick] [--json] [--against CHECKOUT]

The same turns as in `benchmarks.turn_in_process` (2 KB requests on one connection, then streams on 64),
through a gateway in this process whose connections are pipes. Of each turn the calls are counted; the figure
is the median turn, and the functions that at least half of the turns pass. So what happens once a second does
not count, and no clock of the machine is in it.

`turn` and `functions` are those of the packages that decide: admission, routing, workflow, cost, fleet,
tool_probe, domain. With `--against`, another checkout too, and the ratio of this one to that.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvloop

from benchmarks import turn_in_process
from benchmarks.command import judged
from benchmarks.processes import ROOT, Pinning, upstream
from benchmarks.shapes import SHAPES
from benchmarks.verdict import Verdict

_DECIDE: Final = ("admission", "routing", "workflow", "cost", "fleet", "tool_probe", "domain")
_SHAPES: Final = ("json_2kb_c1", "sse_64_c64")
_TARGET: Final = 120
"""Functions, of those that decide."""


class _Counted:
    """In place of the clock that `turn_in_process` reads: how often functions are called while it gives."""

    def __init__(self) -> None:
        self.turns: list[dict[tuple[str, str], float]] = []
        self._now: Counter[tuple[str, str]] = Counter()

    def give(self, give: Callable[[bytes], None], reads: list[bytes]) -> float:
        sys.setprofile(self._seen)
        try:
            for read in reads:
                give(read)
        finally:
            sys.setprofile(None)
        return 0.0

    def turn_over(self, connections: int) -> None:
        """Each of so many has had one."""
        self.turns.append({function: count / connections for function, count in self._now.items()})
        self._now = Counter()

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            name = frame.f_globals.get("__name__", "")
            if name.startswith("gateway."):
                self._now[name.split(".")[1], f"{name}:{frame.f_code.co_qualname}"] += 1


def _figures(turns: list[dict[tuple[str, str], float]]) -> dict[str, float]:
    packages = sorted({package for turn in turns for package, _ in turn})
    found: dict[str, float] = {}
    for package in packages:
        sums = [sum(count for (of, _), count in turn.items() if of == package) for turn in turns]
        found[package] = statistics.median(sums)
    often = Counter(function for turn in turns for function in turn)
    passed = [function for function, count in often.items() if 2 * count >= len(turns)]
    found["turn"] = sum(found.get(package, 0.0) for package in _DECIDE)
    found["functions"] = sum(package in _DECIDE for package, _ in passed)
    return found


def work(name: str, turns: int) -> None:
    """In a process of its own: prints what it counted."""
    [shape] = [each for each in SHAPES if each.name == name]
    counted = _Counted()
    turn_in_process._taken_by = counted.give  # noqa: SLF001
    of_each = turn_in_process._Turns.of_each  # noqa: SLF001

    async def one(self: Any, *, counts: bool, are_first: bool = False) -> None:
        await of_each(self, counts=counts, are_first=are_first)
        if counts and not are_first:
            counted.turn_over(len(self))

    turn_in_process._Turns.of_each = one  # type: ignore[method-assign]  # noqa: SLF001
    with upstream(Pinning.of_this_machine(), events=4) as [engine], tempfile.TemporaryDirectory() as folder:
        mode = turn_in_process._SESSIONS  # noqa: SLF001
        uvloop.run(turn_in_process._measured(shape, turns, engine, folder, mode))  # noqa: SLF001
    print(json.dumps(_figures(counted.turns)), flush=True)
    os._exit(0)  # connections that are none cannot be drained


def measure(options: argparse.Namespace, is_quick: bool, verdict: Verdict, tell: Any) -> None:
    for name in _SHAPES:
        work = f"calls import work; work({name!r}, {2 if is_quick else 8})"
        ours = turn_in_process.in_checkout(ROOT, work)
        theirs = turn_in_process.in_checkout(options.against, work) if options.against is not None else {}
        for figure, value in ours.items():
            if figure == "functions":
                verdict.at_most(f"{name}.functions", value, _TARGET)
            else:
                verdict.tell(f"{name}.{figure}", value)
            if theirs.get(figure):
                verdict.tell(f"{name}.{figure}_ratio", value / theirs[figure])
        tell(f"{name}: {ours['turn']:.0f} calls of {ours['functions']:.0f} functions decide a turn")


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--against", type=Path, help="another checkout of Turnpike")
    options, _ = own.parse_known_args(argv)
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(options, is_quick, verdict, tell),
        quick="fewer turns",
        own=own,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
