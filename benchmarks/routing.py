"""Where turns run: this gateway's placement against others', behind the same admission.

    python -m benchmarks.routing --workload FILE [--replicas 4,8] [--seeds 1,2] [--loads 1.2]
        [--quick] [--json]

Simulated fleets, like and unlike, on a workload's sessions, at loads relative to the knee of affinity, which
is measured for each fleet. Every policy is this gateway's brain but for where it sends turns: round robin,
fewest running, a hash ring over sessions and the longest known beginning (vLLM's production stack),
cache-aware routing (smg), and SAGA's rule, that ours was chosen against.

Never more than 1 % worse than the best of the others in mean completion; at the knee and above it better than
each of the others but SAGA's: all policies play the same sessions, so ratios are taken seed by seed, and all
of their mean's 95 % interval lies below 1. Replicas evenly busy.

A run of 160 sessions takes 10 to 40 s, and there are `policies × 3 loads × seeds` of them for each fleet:
`--quick` (one seed, 13 sessions for each replica) with `--replicas 8 --knee 95` takes ten minutes, five seeds
an hour and a half. `--policies` leaves some out.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.simulations.knee import SLOW, find_knee
from benchmarks.simulations.workloads import MIXES, composed, load
from benchmarks.verdict import Interval, Verdict
from gateway.simulator.baselines.placements import PLACEMENTS
from gateway.simulator.baselines.spec import parse_policies
from gateway.simulator.experiment.parallel import run_all
from gateway.simulator.experiment.trial import Setting, Trial
from gateway.simulator.fleet import FleetSpec, decode_fleet
from gateway.simulator.measures.figures import RunFigures

RELATIVE: Final = [0.6, 1.0, 1.2]
"""To the knee."""
OURS: Final = "turnpike"
SAGA: Final = "turnpike:placement=affinity"
BUSY: Final = 0.7
_GROUP: Final = '[[replicas]]\nprofile = "qwen3-coder-30b-a3b@%s"\ncount = %d\n'


def fleets(replicas: int) -> dict[str, str]:
    """So many, all like each other, and half of them of another kind."""
    like = "noise = 0.02\n" + _GROUP % ("h200", replicas)
    unlike = "noise = 0.02\n" + _GROUP % ("h200", replicas // 2) + _GROUP % ("h100", replicas // 2)
    return {f"{replicas}-like": like, f"{replicas}-unlike": unlike}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.routing", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workload", required=True, help=f"a workload file, or one of {', '.join(MIXES)}")
    parser.add_argument(
        "--fleet", type=Path, action="append", help="fleet files (default: like and unlike replicas)"
    )
    parser.add_argument("--replicas", type=_numbers, default=[4], help="of each fleet (default 4)")
    parser.add_argument(
        "--policies",
        type=lambda text: text.split(","),
        default=[name for name in PLACEMENTS if name != "affinity"],
        help="those of others beside SAGA's (default: all)",
    )
    parser.add_argument("--sessions", type=int, default=40, help="of each run, for each replica (default 40)")
    parser.add_argument("--seeds", type=_numbers, default=[1, 2])
    parser.add_argument("--knee", type=float, help="sessions an hour for each replica (default: measured)")
    parser.add_argument("--loads", type=_decimals, default=RELATIVE, help="to the knee (default 0.6,1,1.2)")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one seed, and a third of the sessions")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.sessions = options.seeds[:1], options.sessions // 3
    texts = {name: text for count in options.replicas for name, text in fleets(count).items()}
    if options.fleet:
        texts = {path.stem: path.read_text() for path in options.fleet}
    verdict = Verdict()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.workload)
        if options.workload in MIXES:
            path = composed(options.workload, Path(folder), count=400)
        for name, text in texts.items():
            measure(name, decode_fleet(text.encode()), path, verdict, options)
    return verdict.report(is_json_alone=options.json)


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _decimals(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def measure(
    name: str, fleet: FleetSpec, workload: Path, verdict: Verdict, options: argparse.Namespace
) -> None:
    replicas = len(fleet.each())
    sessions = load(workload, fleet).sessions
    setting = Setting(workload=sessions, fleet=fleet, sessions=options.sessions * replicas, shown=0)

    def run(policies: tuple[str, ...], per_h: float, seeds: list[int]) -> list[list[RunFigures]]:
        variants = [parse_policies(policy)[0].variants[0] for policy in policies]
        trials = [Trial(variant, per_h, seed) for variant in variants for seed in seeds]
        found = run_all(setting, trials, jobs=options.jobs, progress=_told)
        return [found[at : at + len(seeds)] for at in range(0, len(found), len(seeds))]

    knee = options.knee * replicas if options.knee else None
    if knee is None:
        knee, _ = find_knee(
            lambda per_h: run((SAGA,), per_h, [1])[0][0].metrics["slowdown_mean"] or 0.0,
            80.0 * replicas,
            at_most=SLOW,
        )
    verdict.tell(f"{name}_knee_per_h", knee)
    policies = (OURS, SAGA, *(f"turnpike:placement={each}" for each in options.policies))
    for relative in options.loads:
        found = dict(zip(policies, run(policies, relative * knee, options.seeds), strict=True))
        judge(f"{name}_at_{relative:g}", relative, found, verdict)


def judge(at: str, relative: float, found: dict[str, list[RunFigures]], verdict: Verdict) -> None:
    ours = [_of(each, "completion_mean_s") for each in found[OURS]]
    verdict.tell(f"{at}_mean_s", _mean(ours))
    for policy, runs in found.items():
        if policy == OURS:
            continue
        theirs = [_of(each, "completion_mean_s") for each in runs]
        name = policy.rpartition("=")[2]
        ratio = Interval.of([our / their for our, their in zip(ours, theirs, strict=True)])
        verdict.at_most(f"{at}_mean_to_{name}", ratio.mean, 1.01)
        if len(ours) > 1:
            verdict.tell(f"{at}_mean_to_{name}_low", ratio.low)
            if relative >= 1 and policy != SAGA:
                verdict.at_most(f"{at}_mean_to_{name}_high", ratio.high, 1.0)
            else:
                verdict.tell(f"{at}_mean_to_{name}_high", ratio.high)
    verdict.tell(f"{at}_hit_rate", _mean([_of(each, "hit_rate") for each in found[OURS]]))
    busy = _mean([_of(each, "busy") for each in found[OURS]])
    verdict.tell(f"{at}_busy", busy)
    spread = _mean([_of(each, "busy_max_to_mean") for each in found[OURS]])
    if busy >= BUSY:
        verdict.at_most(f"{at}_busy_max_to_mean", spread, 1.3)
    else:
        verdict.tell(f"{at}_busy_max_to_mean", spread)


def _of(run: RunFigures, name: str) -> float:
    return run.metrics[name] or 0.0


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _told(_: int, trial: Trial, found: RunFigures) -> None:
    mean_s, hits = found.metrics["completion_mean_s"] or 0.0, found.metrics["hit_rate"] or 0.0
    line = (
        f"{trial.per_h:5.1f}/h seed {trial.seed} {trial.variant.label}: mean {mean_s:.0f} s, hits {hits:.2f}"
    )
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
