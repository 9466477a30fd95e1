"""Do the results hold on devices that are faster or slower than assumed?

    python -m benchmarks.sensitivity NAME [--quick] [--json] [--seeds N] [--loads L,…] [--sessions FILE]

No GPU was measured: a step takes as long as its FLOPs at `compute_efficiency` of what the device attains, or
as its bytes, and `step_overhead_s`. A scenario of `benchmarks.results` is played again with efficiencies from
0.4 to 0.7 and overheads from 1 to 9 ms, at the same sessions an hour. Figures: mean completion, Turnpike ÷
affinity, ÷ the best fixed cap in hindsight, ÷ its strongest baselines, and with the plugin ÷ without, of
paired seeds. A conclusion that turns on the assumption shows as a ratio on either side of 1.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.command import judged
from benchmarks.results.__main__ import Bench
from benchmarks.results.figures import Cell, cells, ratio
from benchmarks.results.scenario import Scenario
from benchmarks.results.store import Run
from benchmarks.verdict import Verdict
from lab.simulator.experiment.trial import Trial

DEVICES: Final = ((0.4, 0.001), (0.4, 0.009), (0.7, 0.001), (0.7, 0.009), (0.55, 0.004))
"""Efficiency, and overhead in seconds; as shipped the last."""
FIRST_SEED: Final = 7001
_METRIC: Final = "completion_mean_s"
_RIVALS: Final = ("affinity", "session-cap", "mars", "thunderagent")
_POLICIES: Final = (*_RIVALS, "turnpike", "turnpike+plugin")
"""Of the scenario's, without offload."""
_MUST_GAIN: Final = ("to_affinity", "to_session-cap", "plugin_to_without")


def profile_of(named: str, efficiency: float, overhead_s: float, folder: Path) -> Path:
    """A file with this efficiency and overhead, and the shipped model and hardware."""
    model, _, hardware = named.partition("@")
    devices, times, device = hardware.rpartition("x")
    path = folder / f"{efficiency:g}-{overhead_s:g}.toml"
    path.write_text(
        f'model = "{model}"\nhardware = "{device if times else hardware}"\n'
        f"tensor_parallel = {devices or 1}\ncompute_efficiency = {efficiency}\n"
        f"step_overhead_s = {overhead_s}\n"
    )
    return path


def runs(options: argparse.Namespace, profile: Path, seeds: int) -> tuple[Bench, list[Run]]:
    files = {options.name: options.sessions} if options.sessions else {}
    [group] = Scenario.read(options.name).fleet.replicas
    change = (
        f'fleet.replicas = [{{ profile = "{profile}", count = {group.count}, '
        f"offload_gb = {group.offload_gb} }}]\nfirst_seed = {FIRST_SEED}\nseeds = {seeds}"
    )
    bench = Bench(options.name, files, options.jobs, [change])
    trials = [
        Trial(variant, bench.scenario.per_h(load), seed)
        for seed in bench.scenario.all_seeds
        for load in options.loads
        for _, variant in bench.scenario.variants()
        if "offload" not in variant.label and variant.label.partition(":")[0] in _POLICIES
    ]
    return bench, list(bench.run(trials))


def ratios(at: Sequence[Cell]) -> Iterator[tuple[str, Cell, Cell]]:
    by_policy = {cell.label.partition(":")[0]: cell for cell in at}
    ours = by_policy["turnpike"]
    yield from ((f"to_{rival}", ours, by_policy[rival]) for rival in _RIVALS if rival in by_policy)
    if "turnpike+plugin" in by_policy:
        yield "plugin_to_without", by_policy["turnpike+plugin"], ours


def measure(options: argparse.Namespace, is_quick: bool, verdict: Verdict, tell: Any) -> None:
    told: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        named = Scenario.read(options.name).fleet.replicas[0].profile
        for efficiency, overhead_s in (DEVICES[0], DEVICES[-2]) if is_quick else DEVICES:
            profile = profile_of(named, efficiency, overhead_s, Path(folder))
            bench, found = runs(options, profile, 1 if is_quick else options.seeds)
            for load in options.loads:
                row = []
                for what, ours, theirs in ratios(cells(bench.scenario, found, load)):
                    interval = ratio(ours, theirs, _METRIC)
                    assert interval is not None
                    at = f"{efficiency:g}_{overhead_s * 1e3:g}ms_{load:g}.{what}"
                    for end, value in (("", interval.mean), ("_low", interval.low), ("_high", interval.high)):
                        verdict.tell(at + end, value)
                    told.setdefault(what, []).append(interval.mean)
                    row.append(f"{what} {interval.mean:.2f} ({interval.low:.2f}-{interval.high:.2f})")
                about = f"{efficiency:g} of the FLOP/s, {overhead_s * 1e3:g} ms, {load:g} x knee"
                tell(f"{about}: {', '.join(row)}")
    for what, values in told.items():
        verdict.tell(f"least.{what}", min(values))
        if what in _MUST_GAIN:
            verdict.at_most(f"greatest.{what}", max(values), 1.01)
        else:
            verdict.tell(f"greatest.{what}", max(values))


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("name", help="a scenario of benchmarks.results")
    own.add_argument("--seeds", type=int, default=4)
    own.add_argument("--loads", type=lambda text: [float(each) for each in text.split(",")], default=[1.2])
    own.add_argument("--sessions", type=Path, help="if the scenario's come from a file")
    own.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(own.parse_known_args(argv)[0], is_quick, verdict, tell),
        quick="one seed, and the extreme pairs alone",
        own=own,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
