"""Every policy on several workloads, below, at and above the knee; writes docs/design/results.md from
scratch.

    python -m benchmarks.run [WORKLOAD…] [--mix NAME…] [--quick] [--reference WORKLOAD]

Without workloads, mixes are composed that the papers describe. `--reference` takes the
kv-cache-tester sessions, imported as docs/reference/workloads.md says, and sets what an independent
simulation found beside ours.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.simulations import pages, reference
from benchmarks.simulations.comparison import OTHERS, Scope, compare
from benchmarks.simulations.workloads import MIXES, composed, load
from gateway.simulator.baselines.spec import parse_policies
from gateway.simulator.experiment.parallel import run_all
from gateway.simulator.experiment.results import planned, put_together
from gateway.simulator.experiment.trial import Setting
from gateway.simulator.fleet import FleetSpec, decode_fleet

ROOT = Path(__file__).resolve().parents[1]
FLEET = ROOT / "benchmarks/simulations/h200.toml"


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    fleet = decode_fleet(options.fleet.read_bytes())
    scope = Scope(
        sessions=60, seeds=options.seeds, jobs=options.jobs, others=OTHERS, caps=(0.75, 1.25), shares=(0.9,)
    )
    if options.quick:
        scope = Scope(
            sessions=40, seeds=1, jobs=options.jobs, others=("oldest-first",), caps=(0.8,), shares=(0.9,)
        )
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        mixes = options.mix if options.mix or options.workloads else list(MIXES)
        files = [*options.workloads, *(composed(mix, Path(folder), count=240) for mix in mixes)]
        comparisons = [compare(load(path, fleet), fleet, scope) for path in files]
    beside = _reference(options.reference, fleet, scope) if options.reference else []
    command = "python -m benchmarks.run" + (" --quick" if options.quick else f" --seeds {scope.seeds}")
    page = pages.whole(comparisons, scope, fleet=_described(fleet), command=command, reference=beside)
    options.output.write_text(page, encoding="utf-8")
    print(f"{options.output}: {len(comparisons)} workloads, {(time.monotonic() - began) / 60:.0f} minutes")
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workloads", nargs="*", type=Path, metavar="WORKLOAD")
    parser.add_argument("--mix", action="append", default=[], metavar="NAME", help="of `workload synth`")
    parser.add_argument("--fleet", type=Path, default=FLEET)
    parser.add_argument("--reference", type=Path, metavar="WORKLOAD", help="the kv-cache-tester sessions")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each policy at each load (default 2)")
    parser.add_argument("--quick", action="store_true", help="fewer sessions, seeds and policies")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs/design/results.md")
    return parser.parse_args(argv)


def _described(fleet: FleetSpec) -> str:
    return ", ".join(
        f"{group.count} × {group.profile} with {group.offload_gb:g} GB of host memory where `offload` is on"
        for group in fleet.replicas
    )


def _reference(path: Path, fleet: FleetSpec, scope: Scope) -> list[str]:
    workload = load(path, fleet)
    specs = [spec for text in reference.REFERENCE for spec in parse_policies(text)]
    loads: list[float | None] = list(reference.RAN.values())
    trials = planned(specs, loads, max(2, scope.seeds))
    setting = Setting(workload=workload.sessions, fleet=fleet, sessions=120, shown=0)

    def progress(done: int, *_: object) -> None:
        print(f"reference: {done}/{len(trials)}", file=sys.stderr, flush=True)

    found = run_all(setting, trials, jobs=scope.jobs, progress=progress)
    cells = put_together(specs, loads, trials, found)
    return [
        (reference.__doc__ or "").partition("\n")[2].strip(),
        "",
        f"Mean completion in seconds; {max(2, scope.seeds)} seeds. ✗: more than {reference.WITHIN:.0%} off.",
        "",
        *reference.table(cells),
    ]


if __name__ == "__main__":
    sys.exit(main())
