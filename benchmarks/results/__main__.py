"""Runs what is missing of the scenarios, and writes docs/design/results.md.

python -m benchmarks.results [NAME …] [--minutes M] [--seeds N] [--jobs N] [--sessions [NAME=]FILE …]
python -m benchmarks.results NAME … --set 'KEY = VALUE' …  the scenario, changed; its runs are not stored
python -m benchmarks.results NAME … --quick                one seed, a third of the sessions; nor are these
python -m benchmarks.results NAME --cell POLICY LOAD       one cell again, beside what is stored
python -m benchmarks.results NAME --knee                   where the knee is
python -m benchmarks.results --page                        the page alone, from stored runs
python -m benchmarks.results --quick [--sessions FILE]     three drawn cells again: are they the same?
"""

import argparse
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import msgspec

from benchmarks.processes import BenchmarkError, revision
from benchmarks.results import compares, page
from benchmarks.results.figures import KEPT
from benchmarks.results.scenario import OURS, Scenario, names
from benchmarks.results.store import FOLDER, Making, Run, Store, sha256_of, sources_are_committed
from benchmarks.simulations.workloads import composed, load, with_tools
from benchmarks.verdict import Verdict
from lab.simulator.baselines.spec import Variant, parse_policies
from lab.simulator.experiment.knee import Slow, find_knee
from lab.simulator.experiment.parallel import run_all
from lab.simulator.experiment.trial import Setting, Trial
from lab.workload.trace.format import Session

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/design/results.md"
README: Final = PAGE.parents[2] / "README.md"
GAINS: Final = re.compile(r"\| workload \| sessions finish in .*?\n(?=\n)", re.DOTALL)
_AGAIN: Final = 3
_FAILED: Final = 1e9
"""Times its isolated time: a session that never ended."""
_BATCH: Final = 12
"""Runs between two looks at the clock."""


class Bench:
    """One scenario, with its sessions at hand."""

    def __init__(
        self,
        name: str,
        files: dict[str, Path],
        jobs: int,
        changes: Sequence[str] = (),
        *,
        is_quick: bool = False,
    ) -> None:
        """`files`: with the sessions of scenarios, by name; of any other one under no name."""
        self.name = name
        self.scenario = scenario = Scenario.read(name, changes)
        if is_quick:
            self.scenario = scenario = msgspec.structs.replace(
                scenario, seeds=1, sessions=scenario.sessions // 3
            )
        self.is_changed = bool(changes) or is_quick
        self._jobs = jobs
        with tempfile.TemporaryDirectory() as folder:
            if scenario.mix is not None:
                path = composed(scenario.mix, Path(folder), count=scenario.pool)
            elif (given := files.get(name) or files.get("")) is not None:
                path = given
            else:
                raise BenchmarkError(
                    f"{name}: its sessions are needed: --sessions {name}=FILE ({scenario.source})"
                )
            self._sessions: list[Session] = load(path, scenario.fleet).sessions
        if scenario.tool_cores:
            self._sessions = [
                with_tools(each, cpu_cores=lambda _: scenario.tool_cores) for each in self._sessions
            ]
        self._sha256 = sha256_of(self._sessions)
        self.setting = Setting(
            workload=self._sessions,
            fleet=scenario.fleet,
            sessions=scenario.sessions,
            stage=None if scenario.world is None else scenario.world.stage,
            keeps_slowdowns=bool(scenario.tenants),
            shown=0,
        )

    def _making(self, policy: str) -> Making:
        return Making.now(policy, self.scenario, self._sha256)

    def _is_current(self, run: Run | None) -> bool:
        return run is not None and run.making == self._making(run.policy)

    def missing(self, store: Store, seeds: int | None = None) -> list[Trial]:
        """Of the first so many seeds; seed by seed, so that whatever is there can be compared."""
        return [
            trial
            for seed in self.scenario.all_seeds[:seeds]
            for load_ in self.scenario.loads
            for _, variant in self.scenario.variants()
            for trial in [Trial(variant, self.scenario.per_h(load_), seed)]
            if not self._is_current(store.runs.get((variant.label, self.scenario.per_h(load_), seed)))
        ]

    def run(self, trials: Sequence[Trial]) -> Iterator[Run]:
        """In any order."""
        for is_ours in (False, True):
            told = self.scenario.says_when_over
            setting = msgspec.structs.replace(
                self.setting, says_when_over=not is_ours if told is None else told
            )
            yield from self._run(
                setting, [each for each in trials if each.variant.label.startswith(OURS) == is_ours]
            )

    def _run(self, setting: Setting, trials: Sequence[Trial]) -> Iterator[Run]:
        found = run_all(setting, trials, jobs=self._jobs, progress=lambda *_: None) if trials else []
        for trial, figures in zip(trials, found, strict=True):
            assert trial.per_h is not None
            yield Run(
                policy=trial.variant.label,
                per_h=trial.per_h,
                seed=trial.seed,
                metrics={name: _rounded(figures.metrics[name]) for name in KEPT},
                revision=revision().removesuffix("-dirty"),  # of the sources, which are clean
                making=self._making(trial.variant.label),
                slowdowns={
                    tenant: [min(float(f"{each:.6g}"), _FAILED) for each in slow]
                    for tenant, slow in figures.slowdowns.items()
                },
            )

    def knee(self, seeds: int | None) -> float:
        """Of affinity, or of affinity with offload if every policy has it. The median of the seeds decides
        at each load: a single one may fall over a cliff."""
        chosen = self.scenario.all_seeds[:seeds]
        first = "affinity" if "affinity" in self.scenario.policies else "affinity+offload"
        stock, unlimited = (spec.variants[0] for spec in parse_policies(f"{first},infinite-kv"))

        def measure(per_h: float) -> float:
            trials = [Trial(variant, per_h, seed) for variant in (stock, unlimited) for seed in chosen]
            found = run_all(self.setting, trials, jobs=self._jobs, progress=lambda *_: None)
            slow = [figures.metrics["slowdown_mean"] or 0.0 for figures in found]
            pairs = [Slow(*pair) for pair in zip(slow[: len(chosen)], slow[len(chosen) :], strict=True)]
            memory = median(each.stock / each.unlimited for each in pairs)
            print(
                f"{self.name}: {per_h:.0f}/h: {memory:.2f} × as long as with unlimited KV, "
                f"which takes {median(each.unlimited for each in pairs):.2f} × the isolated time",
                file=sys.stderr,
                flush=True,
            )
            return median(each.measure for each in pairs)

        return find_knee(measure, self.scenario.knee_per_h, at_most=1.0)[0]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def fill(bench: Bench, store: Store, *, seeds: int | None, until_s: float) -> None:
    if store.path is not None and store.path.parent == FOLDER and not sources_are_committed():
        raise BenchmarkError("stored runs name the revision that made them: commit first")
    while (trials := bench.missing(store, seeds)) and time.monotonic() < until_s:
        for run in bench.run(trials[:_BATCH]):
            store.add(run)
            told = (
                f"{run.policy} at {run.per_h:g}/h, seed {run.seed}: mean {run.metrics['completion_mean_s']} s"
            )
            print(told, file=sys.stderr, flush=True)
        print(f"{bench.name}: {len(trials) - len(trials[:_BATCH])} to go", file=sys.stderr, flush=True)


def can_be_played(name: str, files: Mapping[str, Path]) -> bool:
    """Its sessions are made here, or given."""
    return Scenario.read(name).mix is not None or bool({name, ""} & files.keys())


def again(verdict: Verdict, files: dict[str, Path], jobs: int, tell: Any) -> None:
    """Drawn cells, each of one seed, come out as they are stored."""
    dice = Random()
    stored_names = [name for name in page.SCENARIOS if Store(name).runs]
    playable = [name for name in stored_names if can_be_played(name, files)]
    if left_out := set(stored_names).difference(playable):
        tell(f"never drawn, as their sessions are needed (--sessions): {', '.join(sorted(left_out))}")
    if not playable:
        raise BenchmarkError("no runs are stored")
    for number in range(_AGAIN):
        bench = Bench(dice.choice(playable), files, jobs)
        wanted = {variant.label: variant for _, variant in bench.scenario.variants()}
        runs = [run for run in Store(bench.name).runs.values() if run.policy in wanted]
        stored = dice.choice(sorted(runs, key=lambda run: run.key))
        (fresh,) = bench.run([Trial(wanted[stored.policy], stored.per_h, stored.seed)])
        then, now = stored.metrics["completion_mean_s"], fresh.metrics["completion_mean_s"]
        assert then is not None
        assert now is not None
        tell(f"{bench.name} {stored.key}: {then:g} s stored, {now:g} s now")
        verdict.at_most(f"cell_{number + 1}_off", abs(math.log(now / then)), page.OFF)


def cell(bench: Bench, policy: str, load_: float, seeds: int | None) -> None:
    store = Store(bench.name, None if bench.is_changed else FOLDER)
    variants: list[Variant] = [each for spec in parse_policies(policy) for each in spec.variants]
    for variant in variants:
        per_h = bench.scenario.per_h(load_)
        trials = [Trial(variant, per_h, seed) for seed in bench.scenario.all_seeds[:seeds]]
        for run in bench.run(trials):
            stored = store.runs.get(run.key)
            then = stored.metrics["completion_mean_s"] if stored else None
            print(f"{run.policy} seed {run.seed}: {run.metrics['completion_mean_s']} s; stored: {then}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.results", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; by default those of the page"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after so many")
    parser.add_argument("--seeds", type=int, help="by default what the scenario says")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sessions", action="append", default=[], metavar="[NAME=]FILE")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="in TOML")
    parser.add_argument("--cell", nargs=2, metavar=("POLICY", "LOAD"))
    parser.add_argument("--knee", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a slice; without names three drawn cells")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    options = parser.parse_args(argv)
    files = {name: Path(file) for name, _, file in (each.rpartition("=") for each in options.sessions)}
    benches: dict[str, tuple[Scenario, Store]] = {}

    def stored(name: str) -> tuple[Scenario, Store]:
        return benches.get(name) or (Scenario.read(name), Store(name))

    try:
        if options.quick and not options.names:
            verdict = Verdict()
            again(verdict, files, options.jobs, (lambda *_: None) if options.json else print)
            return verdict.report(is_json_alone=options.json)
        until_s = time.monotonic() + 60 * options.minutes
        for name in () if options.page else options.names or page.SCENARIOS:
            if not options.names and not can_be_played(name, files):
                print(f"{name}: left out, its sessions are needed: --sessions", file=sys.stderr)
                continue
            bench = Bench(name, files, options.jobs, options.set, is_quick=options.quick)
            if options.knee:
                print(f"{name}: {bench.knee(options.seeds):.4g} sessions an hour")
            elif options.cell:
                cell(bench, options.cell[0], float(options.cell[1]), options.seeds)
            else:
                benches[name] = bench.scenario, Store(name, None if bench.is_changed else FOLDER)
                fill(bench, benches[name][1], seeds=options.seeds, until_s=until_s)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 2
    verdict = Verdict()
    for name in benches:
        compares.judge(verdict, name, stored)
    if not (options.knee or options.cell or options.set or options.quick):
        PAGE.write_text(page.whole(), encoding="utf-8")
        readme = README.read_text(encoding="utf-8")
        README.write_text(GAINS.sub(lambda _: page.gains(), readme), encoding="utf-8")
    return verdict.report(is_json_alone=options.json) if verdict.figures else 0


if __name__ == "__main__":
    sys.exit(main())
