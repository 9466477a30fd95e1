"""Which rules of admission matter? Each is left out, alone, and what it changes is told.

    python -m benchmarks.ablation [--quick] [--json] [--rule NAME ...] [--constants] [--draw SEED] [--seeds N]
        [--first-seed N]

`--constants`: instead, each constant of placement and admission is set to a smaller and to a larger value,
alone.

Points are drawn from the grid of `benchmarks.harmless`; each is played by the brain as it is and without
the rule, with the same seeds. Told is by how much sessions' mean completion is longer without the rule, as
a ratio: the geometric mean over points and seeds, and its 95 % interval; and the same for the 99th percentile
of times to first token, waiting included. Above 1 the rule helps. A rule
whose interval holds 1, or lies below it, could go, as far as these points say: what it is for may be
elsewhere (tenants, hosts of tools, restarts).
"""

import argparse
import math
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import msgspec

from benchmarks.command import judged
from benchmarks.harmless import QUICK, Point, chosen, grid, laid_out
from benchmarks.processes import BenchmarkError
from benchmarks.verdict import Verdict
from gateway.admission import balance_and_admit as pool
from gateway.admission import gpu_pressure, limits
from gateway.admission import pack_queue as packing
from gateway.admission import throughput as how_many
from gateway.admission import update_window as window
from gateway.routing import kv_ledger, placement
from gateway.workflow.aeg import graph, lifetimes
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.experiment.trial import Setting, Trial, Trials

MODULES: Final = (
    gpu_pressure,
    graph,
    lifetimes,
    limits,
    window,
    how_many,
    kv_ledger,
    placement,
)


class Without(msgspec.Struct, frozen=True):
    """A rule, and what stands for it where it is left out."""

    owner: Any
    """The module or class that has it."""
    attribute: str
    instead: Any


def _all_that_fit(*args: Any, found: Any = how_many.Throughput.within) -> tuple[float, float]:
    return math.inf, found(*args)[1]


def _cold(*args: Any, **kwargs: Any) -> packing.Entry:
    entry = packing.entry_of(*args, **kwargs)
    entry.is_warm = False
    return entry


MOST_SESSIONS: Final = 60
CONSTANTS: Final = """
throughput._AS_GOOD 0.8 0.97, throughput._ENOUGH 0.95 0.99, throughput._CACHE_SAFETY 0.7 0.95,
throughput._PAYS 1.02 1.2, throughput._HALF_LIFE, throughput._ENOUGH_TURNS, limits._UPDATE_S,
limits._TURNS_AHEAD, lifetimes._PRIOR_GROWTH, lifetimes._PRIOR_PROMPT, lifetimes._PRIOR_END,
lifetimes._STRENGTH, graph.ENOUGH, graph._STRENGTH, gpu_pressure._LASTS, gpu_pressure._LASTS_LONGER,
gpu_pressure.PREEMPTIONS_ARE_OVERLOAD,
gpu_pressure._ENOUGH_TURNS, gpu_pressure._TOLERANCE_TOKENS, update_window._LEAST_OF_STATED 0.4 0.8,
placement._MOVE_PAYS 0.6 0.95, placement._LESS_FULL 0.7 0.97,
placement.HOLDS_UP 0.25 1.0, placement._ROOM 0.6 0.95, placement._ALIKE 1.1 2.0,
kv_ledger.TOOLS_RUN_S, kv_ledger.IDLE_S, kv_ledger._HORIZON_SHARE 0.4 0.95, kv_ledger._UNKNOWN_HORIZON
"""
"""What placement and the limits of one tenant's sessions are set by, and other values: half and twice what
it is, where none are named. Bounds of memory, what is for several tenants, and what is for tools' hosts are
not here."""


def varied() -> dict[str, Without]:
    modules = {each.__name__.rpartition(".")[2]: each for each in MODULES}
    found = {}
    for line in CONSTANTS.replace("\n", " ").split(","):
        name, *values = line.split()
        module, _, attribute = name.partition(".")
        is_now = getattr(modules[module], attribute)
        for value in map(float, values or (is_now / 2, is_now * 2)):
            key = f"{module}.{attribute.strip('_').lower()}={value:g}"
            found[key] = Without(modules[module], attribute, value)
    return found


RULES: Final[dict[str, Without]] = {
    "enough": Without(how_many.Throughput, "within", _all_that_fit),
    "beyond_kv": Without(limits.Limits, "overcommit_sessions", property(lambda _: 0.0, lambda *_: None)),
    "turns_ahead": Without(limits, "_TURNS_AHEAD", 1.0),
    "kv_overflow": Without(limits.Limits, "overflow", lambda *_: 0.0),
    "back": Without(graph.ExpectedReturn, "back", lambda *_: 1.0),
    "worth": Without(limits.Limits, "max_idle_hold_s", lambda _: None),
    "warm_first": Without(pool, "entry_of", _cold),
}


@contextmanager
def left_out(rule: Without | None) -> Iterator[None]:
    if rule is None:
        yield
        return
    was = getattr(rule.owner, rule.attribute)
    setattr(rule.owner, rule.attribute, rule.instead)
    try:
        yield
    finally:
        setattr(rule.owner, rule.attribute, was)


def drawn(count: int, *, draw: int) -> list[Point]:
    return random.Random(draw).sample(_few(), count)


@cache
def _few() -> list[Point]:
    """Those with few sessions, so that each is played within seconds."""
    there = [point for point in grid() if not point.is_offloading]
    return [point for point in there if len(laid_out(point).setting.workload) <= MOST_SESSIONS]


def played(
    point: Point, seeds: Sequence[int], rule: Without | None, *, learned: bool = False
) -> list[tuple[float, float]]:
    """The mean completion of each seed's sessions, and the 99th percentile of their times to first token, in
    seconds. `learned`: the gateway has seen them once before."""
    laid = laid_out(point)
    untold: Setting = msgspec.structs.replace(laid.setting, says_when_over=False, comes_twice=learned)
    (policy,) = parse_policies(f"turnpike{laid.ending}")
    trials, found = Trials(untold), []
    with left_out(rule):
        for seed in seeds:
            run = trials.run(Trial(policy.variants[0], laid.per_h, seed))
            figures = run.metrics
            found.append((figures["completion_mean_s"] or math.inf, figures["ttft_p99_s"] or math.inf))
    return found


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Their geometric mean and its 95 % interval, as of a normal distribution of their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--rule", nargs="+", metavar="NAME", help=f"of {', '.join(RULES)} (default all)")
    own.add_argument("--at", nargs="+", metavar="NAME", help="these points of `benchmarks.harmless`")
    own.add_argument("--points", type=int, default=8, help="drawn from the grid (default 8)")
    own.add_argument("--draw", type=int, default=24, help="which points are drawn (default 24)")
    own.add_argument("--seeds", type=int, default=5, help="runs at each point (default 5)")
    own.add_argument("--first-seed", type=int, default=1, help="the others follow (default 1)")
    own.add_argument("--constants", action="store_true", help="constants at other values, instead of rules")
    own.add_argument("--learned", action="store_true", help="the gateway has seen the sessions once before")
    asked, _ = own.parse_known_args(argv)

    def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
        rules = varied() if asked.constants else RULES
        names = asked.rule or list(rules)
        if unknown := [name for name in names if name not in rules]:
            raise BenchmarkError(f"no rule is called {unknown[0]!r}")
        points = list(QUICK[:2]) if is_quick else drawn(asked.points, draw=asked.draw)
        if asked.at:
            points = chosen(asked.at, points=0, draw=0)
        seeds = range(asked.first_seed, asked.first_seed + (2 if is_quick else asked.seeds))
        whole = {point: played(point, seeds, None, learned=asked.learned) for point in points}
        for name in names:
            ratios: dict[str, list[tuple[float, float]]] = {}
            for point in points:
                without = played(point, seeds, rules[name], learned=asked.learned)
                pairs = zip(without, whole[point], strict=True)
                ratios[point.name] = [(less[0] / all_[0], less[1] / all_[1]) for less, all_ in pairs]
            means, tails = zip(*[pair for here in ratios.values() for pair in here], strict=True)
            at = {
                point: statistics.geometric_mean(mean for mean, _ in here) for point, here in ratios.items()
            }
            worst, best = max(at, key=at.__getitem__), min(at, key=at.__getitem__)
            tell(f"{name}: at most {at[worst]:.3f} ({worst}), at least {at[best]:.3f} ({best})")
            for what, values in (("", means), ("_p99", tails)):
                for side, value in zip(("", "_low", "_high"), interval(values), strict=True):
                    verdict.tell(f"{name}{what}{side}", value)

    return judged(
        __file__, __doc__, measure, quick="two points that are always the same, two seeds", own=own, argv=argv
    )


if __name__ == "__main__":
    sys.exit(main())
