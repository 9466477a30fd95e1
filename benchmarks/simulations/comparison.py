"""Policies on one workload, below, at and above its knee."""

import sys
import time
from collections.abc import Sequence

import msgspec

from benchmarks.simulations.knee import Slow, find_knee
from benchmarks.simulations.workloads import Workload
from gateway.simulator.baselines.plan import Plan
from gateway.simulator.baselines.spec import PolicySpec, parse_policies
from gateway.simulator.experiment.parallel import Progress, run_all
from gateway.simulator.experiment.results import Cell, planned, put_together
from gateway.simulator.experiment.trial import Setting, Trial
from gateway.simulator.fleet import FleetSpec
from gateway.simulator.measures.figures import RunFigures

RELATIVE = (("below", 0.7), ("at", 1.0), ("above", 1.5))
STRONG = ("affinity", "affinity+offload")
"""The baselines that matter."""
BOUNDS = ("belady", "infinite-kv")
OTHERS = ("mars", "saga", "sutradhara", "plas", "infercept", "continuum-dynamic")


_TURNOVERS = 3.0
"""A run has at least so many times the sessions that fill the cache, or it is over before that fills."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    sessions: int
    """Of each run, at least."""
    seeds: int
    jobs: int
    others: tuple[str, ...]
    """Beside the strong baselines, the static windows, the bounds and Turnpike."""
    caps: tuple[float, ...] = (0.5, 0.75, 1.0, 1.5)
    """Of sessions, relative to how many fill the cache."""
    shares: tuple[float, ...] = (0.7, 0.9, 1.1)
    """Of the KV cache, that footprints may fill."""


class Comparison(msgspec.Struct, kw_only=True):
    workload: Workload
    knee_per_h: float
    tried: dict[float, Slow]
    cells: list[Cell]
    policies: list[str]
    sessions: int
    """Of each run."""
    took_s: float

    def at(self, relative: float) -> list[Cell]:
        load = round(self.knee_per_h * relative, 1)
        return [cell for cell in self.cells if cell.per_h == load and cell.is_best]


def compare(workload: Workload, fleet: FleetSpec, scope: Scope) -> Comparison:
    began = time.monotonic()
    plan = Plan.of(fleet)
    kv_tokens = sum(plan.kv_tokens(fleet).values())
    fits = kv_tokens / workload.mean_context
    """Sessions whose contexts fill the cache."""
    count = max(scope.sessions, round(_TURNOVERS * fits))
    setting = Setting(workload=workload.sessions, fleet=fleet, sessions=count, shown=0)
    stock, unlimited = parse_policies("affinity,infinite-kv")

    tried: dict[float, Slow] = {}

    def measure(per_h: float) -> float:
        trials = [Trial(spec.variants[0], per_h, 1) for spec in (stock, unlimited)]
        found = run_all(setting, trials, jobs=scope.jobs, progress=_told(workload, 2))
        tried[per_h] = Slow(*(figures.metrics["slowdown_mean"] or 0.0 for figures in found))
        return tried[per_h].measure

    isolated_s = _isolated_s(setting, stock)
    knee, _ = find_knee(measure, fits / 2 * 3600 / isolated_s, at_most=1.0)
    specs = [spec for text in _policies(fits, scope) for spec in parse_policies(text)]
    loads: list[float | None] = [round(knee * relative, 1) for _, relative in RELATIVE]
    trials = planned(specs, loads, scope.seeds)
    found = run_all(setting, trials, jobs=scope.jobs, progress=_told(workload, len(trials)))
    return Comparison(
        workload=workload,
        knee_per_h=knee,
        tried=tried,
        cells=put_together(specs, loads, trials, found),
        policies=[spec.text for spec in specs],
        sessions=count,
        took_s=time.monotonic() - began,
    )


def _policies(fits: float, scope: Scope) -> Sequence[str]:
    """Static windows in several sizes: the best in hindsight is among them."""

    def cap(times: float) -> str:
        return "/".join(str(n) for n in sorted({max(1, round(times * fits * share)) for share in scope.caps}))

    shares = "/".join(f"{share:g}" for share in scope.shares)
    windows = (f"session-cap:n={cap(1)}", f"footprint:f={shares}", f"session-cap:n={cap(2)}+offload")
    return (*STRONG, *windows, "turnpike", "turnpike+offload", *scope.others, *BOUNDS)


def _isolated_s(setting: Setting, stock: PolicySpec) -> float:
    """One session at a time is as good as alone."""
    alone = msgspec.structs.replace(setting, sessions=min(20, setting.sessions))
    (found,) = run_all(alone, [Trial(stock.variants[0], 0.1, 1)], jobs=1, progress=lambda *_: None)
    return found.metrics["isolated_mean_s"] or 1.0


def _told(workload: Workload, trials: int) -> Progress:
    def progress(done: int, trial: Trial, found: RunFigures) -> None:
        mean = found.metrics["completion_mean_s"] or 0.0
        print(
            f"{workload.name}: {done}/{trials} {trial.variant.label} at {trial.per_h:.0f}/h, "
            f"seed {trial.seed}: mean {mean:.0f} s",
            file=sys.stderr,
            flush=True,
        )

    return progress
