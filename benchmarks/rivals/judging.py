"""Figures of runs, medians over rounds, and what Turnpike's must be beside the others'."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from benchmarks.rivals.arms import OURS
from benchmarks.verdict import Interval, Verdict

Figures = dict[str, float]
"""Of one run; `failed` is a number of requests or sessions, `strangers` others' share of the machine."""
COLD: Final = f"{OURS}_cold"
"""Turnpike just started, where it plays twice."""
BEST: Final = "best"


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """Of one of Turnpike's figures."""

    figure: str
    to: str = BEST
    """An arm that it is divided by, round by round; the best of all others by their medians; or empty,
    itself."""
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
    others = [figures for arm, figures in medians.items() if arm not in (OURS, COLD)]
    for bound in bounds:
        if OURS in found and others and (bound.to in ("", BEST) or bound.to in found):
            _judge(verdict, row, bound, found, medians[OURS], others)


def _judge(
    verdict: Verdict,
    row: str,
    bound: Bound,
    found: Mapping[str, Sequence[Figures]],
    ours: Figures,
    others: Sequence[Figures],
) -> None:
    name, value = f"{row}{bound.figure}_to_{bound.to}", ours[bound.figure]
    if bound.to == BEST:
        best = max if bound.is_more_better else min
        value /= best(each[bound.figure] for each in others)
    elif bound.to:
        pairs = zip(found[OURS], found[bound.to], strict=True)
        interval = Interval.of([one[bound.figure] / other[bound.figure] for one, other in pairs])
        value = interval.mean
        if len(found[OURS]) > 1:
            verdict.tell(f"{name}_low", interval.low)
            verdict.tell(f"{name}_high", interval.high)
    else:
        name = f"{row}{bound.figure}"
    if bound.at_most is not None:
        verdict.at_most(name, value, bound.at_most)
    elif bound.at_least is not None:
        verdict.at_least(name, value, bound.at_least)
    else:
        verdict.tell(name, value)


def _together(runs: Sequence[Figures]) -> Figures:
    kinds: dict[str, Callable[[Iterable[float]], float]] = {"failed": sum, "strangers": max}
    return {figure: kinds.get(figure, statistics.median)([run[figure] for run in runs]) for figure in runs[0]}
