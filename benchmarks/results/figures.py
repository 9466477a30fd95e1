"""Stored runs, compared: ratios of the same seeds, with intervals by bootstrap."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Final

import msgspec

from benchmarks.results.scenario import OURS, Scenario
from benchmarks.results.store import Run
from benchmarks.verdict import Interval, bootstrapped, percentile
from lab.simulator.measures.figures import BY_NAME

KEPT: Final = (
    "completion_mean_s",
    "completion_p90_s",
    "completion_p99_s",
    "slowdown_mean",
    "ttft_p90_s",
    "final_ttft_p50_s",
    "goodput_1.5",
    "goodput_2",
    "goodput_2_per_h",
    "goodput_4",
    "slo",
    "jain_tenants",
    "hit_rate",
    "recomputed_tokens",
    "preemptions",
    "sessions_per_h",
    "busy",
    "busy_max_to_mean",
)
"""What is stored of a run."""
_OFFLOAD: Final = "+offload"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A variant at a load: its runs by seed."""

    policy: str
    """As the scenario writes it."""
    label: str
    runs: dict[int, Run]
    is_clairvoyant: bool
    tenants: dict[str, list[str]] = {}

    def is_of_tenants(self, metric: str) -> bool:
        return metric.rpartition(".")[2] in self.tenants

    def mean(self, metric: str) -> float:
        return fmean(value for run in self.runs.values() if (value := run.metrics[metric]) is not None)

    def figure(self, metric: str) -> float | None:
        """The mean over the seeds; or of a group of tenants, with all seeds as one. None if of nobody."""
        what, _, group = metric.rpartition(".")
        if group not in self.tenants:
            is_known = any(run.metrics[metric] is not None for run in self.runs.values())
            return self.mean(metric) if is_known else None
        slowdowns = [
            slowdown
            for run in self.runs.values()
            for tenant in self.tenants[group]
            for slowdown in run.slowdowns.get(tenant, ())
        ]
        return _of_slowdowns(what, slowdowns) if slowdowns else None

    @property
    def is_ours(self) -> bool:
        return self.label.startswith(OURS)

    @property
    def has_offload(self) -> bool:
        return _OFFLOAD in self.label


def _of_slowdowns(what: str, slowdowns: Sequence[float]) -> float:
    kind, _, number = what.partition("_")
    if kind == "goodput":
        return fmean(slowdown <= float(number) for slowdown in slowdowns)
    return fmean(slowdowns) if number == "mean" else percentile(slowdowns, float(number.removeprefix("p")))


def cells(scenario: Scenario, runs: Iterable[Run], load: float) -> list[Cell]:
    """Of each policy the best variant in hindsight, by mean completion; of the seeds that all have that were
    run."""
    by_key = {run.key: run for run in runs}
    at = [
        (policy, variant, of_seeds)
        for policy, variant in scenario.variants()
        if (
            of_seeds := {
                seed: run
                for seed in scenario.all_seeds
                if (run := by_key.get((variant.label, scenario.per_h(load), seed))) is not None
            }
        )
    ]
    common = set.intersection(*(set(of_seeds) for _, _, of_seeds in at)) if at else set()
    found: dict[str, Cell] = {}
    for policy, variant, of_seeds in at if common else ():
        cell = Cell(
            policy=policy,
            label=variant.label,
            runs={seed: of_seeds[seed] for seed in of_seeds if seed in common},
            is_clairvoyant=variant.is_clairvoyant,
            tenants=scenario.tenants,
        )
        best = found.get(policy)
        if best is None or cell.mean("completion_mean_s") < best.mean("completion_mean_s"):
            found[policy] = cell
    return list(found.values())


def strongest(cells: Sequence[Cell], metric: str, *, has_offload: bool) -> Cell | None:
    """The best baseline with the same memory."""
    rivals = [
        cell
        for cell in cells
        if not cell.is_ours and not cell.is_clairvoyant and cell.has_offload == has_offload
    ]
    sign = -1 if BY_NAME[metric].higher_is_better else 1
    return min(rivals, key=lambda cell: sign * cell.mean(metric), default=None)


def ratio(ours: Cell, theirs: Cell, metric: str) -> Interval | None:
    """Ours ÷ theirs, of seeds that both have: the geometric mean, and 95 % of it by bootstrap. None where a
    value is 0 or unknown."""
    logs = []
    for seed in sorted(ours.runs.keys() & theirs.runs.keys()):
        top, bottom = ours.runs[seed].metrics[metric], theirs.runs[seed].metrics[metric]
        if not top or not bottom:
            return None
        logs.append(math.log(top / bottom))
    return of_logs(logs)


def of_logs(logs: Sequence[float]) -> Interval | None:
    """The geometric mean of what they are logarithms of, and 95 % of it by bootstrap. None if of nothing."""
    if not logs:
        return None
    found = bootstrapped(logs)
    return Interval(math.exp(found.mean), math.exp(found.low), math.exp(found.high))
