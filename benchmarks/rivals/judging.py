"""Figures of runs, medians over rounds, and what Turnpike's must be beside the others'."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from benchmarks.rivals.arms import OURS, ROUTERS
from benchmarks.verdict import Interval, Verdict

Figures = dict[str, float]
"""Of one run; `failed` is a number of requests or sessions, `strangers` others' share of the machine."""
COLD: Final = f"{OURS}_cold"
"""Turnpike just started, where it plays twice."""
BEST: Final = "best"
BEST_ROUTER: Final = "best_router"


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """Of one of Turnpike's figures."""

    figure: str
    to: str = BEST
    """An arm that it is divided by, round by round; the best of all others, or of the routers, by their
    medians; or empty, itself."""
    at_most: float | None = None
    at_least: float | None = None
    is_more_better: bool = False


def judge(
    verdict: Verdict, row: str, found: Mapping[str, Sequence[Figures]], bounds: Sequence[Bound]
) -> None:
    """`found`: by arm, of each round. Names of figures begin with `row`."""
    medians = {arm: _together(runs) for arm, runs in found.items()}
    for arm, figures in medians.items():
        for figure, value in figures.items():
            verdict.tell(f"{row}{arm}.{figure}", value)
    verdict.at_most(f"{row}failed", sum(figures["failed"] for figures in medians.values()), 0)
    for bound in bounds if OURS in found else ():
        name, value = f"{row}{bound.figure}", medians[OURS][bound.figure]
        if bound.to:
            against = _against(bound, medians)
            if against is None:
                continue
            name, value = f"{name}_to_{bound.to}", _ratio(verdict, name, bound, found[OURS], found[against])
        if bound.at_most is not None:
            verdict.at_most(name, value, bound.at_most)
        elif bound.at_least is not None:
            verdict.at_least(name, value, bound.at_least)
        else:
            verdict.tell(name, value)


def _against(bound: Bound, medians: Mapping[str, Figures]) -> str | None:
    """The arm; None if it was not played."""
    if bound.to not in (BEST, BEST_ROUTER):
        return bound.to if bound.to in medians else None
    others = [
        arm for arm in medians if (arm in ROUTERS if bound.to == BEST_ROUTER else arm not in (OURS, COLD))
    ]
    best = max if bound.is_more_better else min
    return best(others, key=lambda arm: medians[arm][bound.figure], default=None)


def _ratio(
    verdict: Verdict, name: str, bound: Bound, ours: Sequence[Figures], theirs: Sequence[Figures]
) -> float:
    """The rounds' ratios, their median, and where their mean lies."""
    ratios = [one[bound.figure] / other[bound.figure] for one, other in zip(ours, theirs, strict=True)]
    for number, each in enumerate(ratios, 1):
        verdict.tell(f"{name}_to_{bound.to}_round_{number}", each)
    if len(ratios) > 1:
        interval = Interval.of(ratios)
        verdict.tell(f"{name}_to_{bound.to}_low", interval.low)
        verdict.tell(f"{name}_to_{bound.to}_high", interval.high)
    return statistics.median(ratios)


def _together(runs: Sequence[Figures]) -> Figures:
    kinds: dict[str, Callable[[Iterable[float]], float]] = {"failed": sum, "strangers": max}
    return {figure: kinds.get(figure, statistics.median)([run[figure] for run in runs]) for figure in runs[0]}
