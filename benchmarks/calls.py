"""How much the gateway does for a turn: calls of Python functions, distinct functions and files, by package.

    python -m benchmarks.calls [--quick] [--json] [--names] [--against CHECKOUT]

Turns through a gateway in this process whose connections are pipes, as in `benchmarks.turn_in_process`:
`json_2kb_c1`, `sse_64_c64` and `chat`, streams of few events with a tool call. Of these `chat_first` is the
first turn of a new connection and conversation, its accepting included, `chat_tenth` the tenth of the same
conversation there, and `grown` a late one of a conversation that has grown to 30 KB. The server's connections
are kept ones, and the gateway has served others before. The figure is the median turn, and the functions that
at least half of the turns pass. So what happens once a second does not count, and no clock of the machine is
in it, but that a replica's forecast learns from at most 20 turns a second (`cost`).

`all`: of all packages, and `all_functions`, `all_files`; `before`: functions until the request is sent on.
`turn` and `functions` are those of the packages that decide: admission, routing, workflow, cost, fleet,
tool_probe, domain. `later`: calls outside of turns, such as for those who read records, a turn. With
`--names`, the functions of a turn and how often each is called; with `--against`, another checkout too, and
the ratio of this one to that.
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

import msgspec
import uvloop

from benchmarks import turn_in_process
from benchmarks.command import judged
from benchmarks.processes import ROOT, Pinning, upstream
from benchmarks.shapes import SHAPES, Shape, Stream, Unit
from benchmarks.verdict import Verdict

_DECIDE: Final = ("admission", "routing", "workflow", "cost", "fleet", "tool_probe", "domain")
_EVENTS: Final = 4
"""That say something. With those that begin and end, a stream has 8."""
_CHAT: Final = Shape(
    name="chat", title="Short streams with a call", unit=Unit.CPU, connections=16, first_bytes=2000, turns=24,
    stream=Stream(_EVENTS, 0.0),
)  # fmt: skip
_GROWN: Final = msgspec.structs.replace(_CHAT, name="grown", turn_bytes=2000)
_SHAPES: Final = {shape.name: shape for shape in (*SHAPES, _CHAT, _GROWN)}
_PLACES: Final = {
    "json_2kb_c1": {"json_2kb_c1": range(402, 500)},
    "sse_64_c64": {"sse_64_c64": range(5, 9)},
    "chat": {"chat_first": range(1), "chat_tenth": range(9, 10)},
    "grown": {"grown": range(14, 18)},
}
"""Of each shape, the figures, and which turns of a connection they are of."""
_TARGETS: Final = {
    "chat_first.all": 500,
    "chat_tenth.all": 350,
    "chat_first.before": 160,
    "chat_first.all_files": 60,
}
_WARM: Final = 20
"""Turns of as many other connections, before."""
_TARGET: Final = 120
"""Functions, of those that decide."""

Function = tuple[str, str, str]
"""Its package, its file, its name."""


class _Turn:
    def __init__(self) -> None:
        self.calls: Counter[Function] = Counter()
        self.before: set[Function] = set()


class _Counted:
    """In place of the clock that `turn_in_process` reads: how often functions are called while it gives."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self.later: Counter[Function] = Counter()
        self.opening: Counter[Function] = Counter()
        self._parts = 0
        self._now = self.later
        self._is_sent = False

    def give(self, give: Callable[[bytes], None], reads: list[bytes]) -> float:
        if self._parts % len(turn_in_process.PARTS[:-1]) == 0:
            self.turns.append(_Turn())
            self._is_sent = False
        self._parts += 1
        self._now = self.turns[-1].calls
        try:
            for read in reads:
                give(read)
        finally:
            self._now = self.later
        return 0.0

    def connects(self, make: Callable[[], turn_in_process.Turns]) -> turn_in_process.Turns:
        self._now = self.opening
        sys.setprofile(self._seen)
        made = make()
        self._now = self.later
        return made

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        name = frame.f_globals.get("__name__", "")
        if name.startswith("gateway."):
            code = frame.f_code
            self._now[name.split(".")[1], name, code.co_qualname] += 1
        elif name == turn_in_process.__name__ and not self._is_sent and self._now is not self.later:
            if frame.f_code.co_qualname.startswith("Pipe.write"):
                self._is_sent = True
                self.turns[-1].before = set(self.turns[-1].calls)


def _figures(turns: list[_Turn], connections: int, opening: Counter[Function] | None) -> dict[str, float]:
    opening = opening or Counter()
    packages = sorted({package for turn in turns for package, *_ in turn.calls})
    opened = Counter({each: count // connections for each, count in opening.items()})
    found: dict[str, float] = {}
    for package in packages:
        begun = sum(count for (of, *_), count in opened.items() if of == package)
        sums = [sum(count for (of, *_), count in turn.calls.items() if of == package) for turn in turns]
        found[package] = begun + statistics.median(sums)
    passed = [*opened, *_often([turn.calls for turn in turns])]
    found["turn"] = sum(found.get(package, 0.0) for package in _DECIDE)
    found["functions"] = sum(package in _DECIDE for package, *_ in passed)
    found["all"] = sum(found[package] for package in packages)
    found["all_functions"] = len(set(passed))
    found["all_files"] = len({file for _, file, _ in passed})
    found["before"] = len({*opened, *_often([turn.before for turn in turns])})
    return found


def _often(turns: list[Any]) -> list[Function]:
    often = Counter(function for turn in turns for function in turn)
    return [function for function, count in often.items() if 2 * count >= len(turns)]


def _names(turns: list[_Turn]) -> dict[str, float]:
    each: Counter[Function] = sum((turn.calls for turn in turns), Counter())
    return {f"{name}:{function}": count / len(turns) for (_, name, function), count in each.most_common()}


async def _counted(shape: Shape, engine: int, folder: str) -> tuple[_Counted, int]:
    gateway = await turn_in_process.started(engine, folder, turn_in_process.SESSIONS)
    others = turn_in_process.Turns(gateway, shape)
    await turn_in_process.through(gateway, others)
    for _ in range(_WARM if shape.crowd == 1 else 0):
        await others.of_each(counts=False)
    counted = _Counted()
    turns = counted.connects(lambda: turn_in_process.Turns(gateway, shape, counted.give, after=others))
    counted.opening = +counted.opening
    await turn_in_process.through(gateway, turns)
    for _ in range(max(place.stop for place in _PLACES[shape.name].values())):
        await turns.of_each(counts=False)
    sys.setprofile(None)
    return counted, len(turns)


def work(name: str, *, names: bool = False) -> None:
    """In a process of its own: prints what it counted."""
    with upstream(Pinning.of_this_machine(), events=4) as [engine], tempfile.TemporaryDirectory() as folder:
        counted, connections = uvloop.run(_counted(_SHAPES[name], engine, folder))
    found: dict[str, float] = {}
    for figure, places in _PLACES[name].items():
        turns = [turn for at, turn in enumerate(counted.turns) if at // connections in places]
        if names:
            found |= {f"{figure} {each}": count for each, count in _names(turns).items()}
            continue
        opening = counted.opening if places.start == 0 else None
        for what, value in _figures(turns, connections, opening).items():
            found[f"{figure}.{what}"] = value
    if not names:
        found[f"{name}.later"] = round(counted.later.total() / len(counted.turns), 1)
    print(json.dumps(found), flush=True)
    os._exit(0)  # connections that are none cannot be drained


def measure(options: argparse.Namespace, is_quick: bool, verdict: Verdict, tell: Any) -> None:
    for name in list(_PLACES)[2:] if is_quick else _PLACES:
        work = f"calls import work; work({name!r}, names={options.names})"
        ours = turn_in_process.in_checkout(ROOT, work)
        theirs = turn_in_process.in_checkout(options.against, work) if options.against is not None else {}
        for figure, value in ours.items():
            target = _TARGET if figure.endswith(".functions") else _TARGETS.get(figure)
            if target is not None:
                verdict.at_most(figure, value, target)
            else:
                verdict.tell(figure, value)
            if theirs.get(figure):
                verdict.tell(f"{figure}_ratio", value / theirs[figure])


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--names", action="store_true", help="the functions, and how often each is called")
    own.add_argument("--against", type=Path, help="another checkout of Turnpike")
    options, _ = own.parse_known_args(argv)
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(options, is_quick, verdict, tell),
        quick="the short streams alone",
        own=own,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
