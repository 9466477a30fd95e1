"""What an experiment came to: for every policy and load, each metric's spread over the seeds.

Of a policy with several variants the best in hindsight is marked, at each load: the one whose median over the
seeds is best.
"""

from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from lab.simulator.baselines.spec import PolicySpec
from lab.simulator.experiment.trial import Trial
from lab.simulator.measures.figures import BY_NAME, METRICS, RunFigures

BEST_BY: Final = "completion_mean_s"


class Spread(msgspec.Struct, frozen=True):
    """Over seeds."""

    min: float
    median: float
    max: float


class Cell(msgspec.Struct, kw_only=True):
    """A variant at a load."""

    policy: str
    """As it was asked for."""
    variant: str
    per_h: float | None
    is_clairvoyant: bool
    is_best: bool = True
    """Of the policy's variants, at this load."""
    variants: int = 1
    """How many of them were tried."""
    metrics: dict[str, Spread | None]
    tenants: dict[str, dict[str, Spread]]
    runs: list[RunFigures]
    """By seed, in order."""

    def median(self, metric: str) -> float | None:
        spread = self.metrics[metric]
        return None if spread is None else spread.median


def planned(specs: Sequence[PolicySpec], loads: Sequence[float | None], seeds: int) -> list[Trial]:
    """The longest first, as far as one can tell: the highest load."""
    trials = [
        Trial(variant, per_h, seed)
        for per_h in loads
        for spec in specs
        for variant in spec.variants
        for seed in range(1, seeds + 1)
    ]
    return sorted(trials, key=lambda trial: -(trial.per_h or 0.0))


def put_together(
    specs: Sequence[PolicySpec],
    loads: Sequence[float | None],
    trials: Sequence[Trial],
    found: Sequence[RunFigures],
    *,
    best_by: str = BEST_BY,
) -> list[Cell]:
    """In the order in which policies and loads were asked for."""
    by_trial = dict(zip(trials, found, strict=True))
    seeds = sorted({trial.seed for trial in trials})
    cells = []
    for spec in specs:
        for per_h in loads:
            of_spec = [
                _cell(
                    spec,
                    variant.label,
                    per_h,
                    is_clairvoyant=variant.is_clairvoyant,
                    runs=[by_trial[Trial(variant, per_h, seed)] for seed in seeds],
                )
                for variant in spec.variants
            ]
            best = _best(of_spec, best_by)
            for cell in of_spec:
                cell.is_best = cell is best
                cell.variants = len(of_spec)
            cells += of_spec
    return cells


def _best(cells: list[Cell], best_by: str) -> Cell:
    sign = -1.0 if BY_NAME[best_by].higher_is_better else 1.0

    def badness(cell: Cell) -> float:
        value = cell.median(best_by)
        return float("inf") if value is None else sign * value

    return min(cells, key=badness)


def _cell(
    spec: PolicySpec, label: str, per_h: float | None, *, is_clairvoyant: bool, runs: list[RunFigures]
) -> Cell:
    tenants = sorted({name for run in runs for name in run.tenants})
    measures = {name: list(found) for run in runs for name, found in run.tenants.items()}
    return Cell(
        policy=spec.text,
        variant=label,
        per_h=per_h,
        is_clairvoyant=is_clairvoyant,
        metrics={metric.name: _spread([run.metrics[metric.name] for run in runs]) for metric in METRICS},
        tenants={
            name: {
                measure: spread
                for measure in measures[name]
                if (spread := _spread([run.tenants[name][measure] for run in runs if name in run.tenants]))
            }
            for name in tenants
        },
        runs=runs,
    )


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(min(known), median(known), max(known)) if known else None
