"""Several gateways before one fleet: do they decide as one would?

    python -m benchmarks.gateways [--workload FILE] [--replicas 8] [--gateways 2,4] [--seeds 1,2,3,4]
        [--loads 0.9,1.2,1.5] [--knee N] [--alone] [--quick] [--json]

The same sessions on the same simulated fleet, by one gateway and by several that share what they know with a
staleness of 100 ms; each session belongs to one of them. At loads relative to the knee of session affinity.
`--alone`: also by several that know nothing of one another. Told are mean completion and the 90th percentile
as ratios to one gateway's, seed by seed, and by how much Jain's index over tenants differs.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.command import judged
from benchmarks.simulations.knee import SLOW, find_knee
from benchmarks.simulations.workloads import MIXES, composed, load
from benchmarks.verdict import Interval, Verdict
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.experiment.trial import Setting, Trial, Trials
from lab.simulator.fleet import decode_fleet
from lab.simulator.measures.figures import RunFigures

ONE: Final = "turnpike"
AFFINITY: Final = "turnpike:admission=none:placement=affinity"
LOADS: Final = (0.9, 1.2, 1.5)
FLEET: Final = 'noise = 0.02\n[[replicas]]\nprofile = "qwen3-coder-30b-a3b@h200"\ncount = %d\n'


def measure(options: argparse.Namespace, is_quick: bool, verdict: Verdict, tell: Any) -> None:
    fleet = decode_fleet((FLEET % options.replicas).encode())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.workload)
        if options.workload in MIXES:
            path = composed(options.workload, Path(folder), count=400)
        sessions = load(path, fleet).sessions
    count = (8 if is_quick else options.sessions) * options.replicas
    seeds = options.seeds[:2] if is_quick else options.seeds
    trials = Trials(Setting(workload=sessions, fleet=fleet, sessions=count, shown=0, says_when_over=False))

    def run(policy: str, per_h: float, seed: int) -> RunFigures:
        found = trials.run(Trial(parse_policies(policy)[0].variants[0], per_h, seed))
        mean_s, hits = _of(found, "completion_mean_s"), _of(found, "hit_rate")
        tell(f"{per_h:.0f}/h seed {seed} {policy}: mean {mean_s:.0f} s, hits {hits:.2f}")
        return found

    knee = options.knee
    if knee is None:
        guess = 80.0 * options.replicas
        knee, _ = find_knee(lambda per_h: _of(run(AFFINITY, per_h, 1), "slowdown_mean"), guess, at_most=SLOW)
    verdict.tell("knee_per_h", knee)
    for relative in options.loads:
        alone = [run(ONE, relative * knee, seed) for seed in seeds]
        kinds = [(f"{count}", f"{ONE}:gateways={count}") for count in options.gateways]
        if options.alone:
            kinds += [(f"{count}_alone", f"{ONE}:gateways={count}:shares=0") for count in options.gateways]
        for kind, policy in kinds:
            several = [run(policy, relative * knee, seed) for seed in seeds]
            at = f"{kind}_at_{relative:g}"
            for name in ("completion_mean_s", "completion_p90_s"):
                ratios = [_of(each, name) / _of(one, name) for each, one in zip(several, alone, strict=True)]
                ratio = Interval.of(ratios)
                if name == "completion_mean_s" and kind.isdigit():
                    verdict.at_most(f"{at}_mean", ratio.mean, 1.03)
                else:
                    verdict.tell(f"{at}_{name[11:-2]}", ratio.mean)
                if len(seeds) > 1:
                    verdict.tell(f"{at}_{name[11:-2]}_low", ratio.low)
                    verdict.tell(f"{at}_{name[11:-2]}_high", ratio.high)
            less = [
                _of(one, "jain_tenants") - _of(each, "jain_tenants")
                for each, one in zip(several, alone, strict=True)
            ]
            verdict.at_most(f"{at}_less_fair", sum(less) / len(less), 0.02)


def _of(run: RunFigures, name: str) -> float:
    return run.metrics[name] or 0.0


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--workload", default="saga-tenants", help=f"a file, or one of {', '.join(MIXES)}")
    own.add_argument("--replicas", type=int, default=8, help="of the fleet (default 8)")
    own.add_argument("--gateways", type=_ints, default=[2, 4], help="so many (default 2,4)")
    own.add_argument("--seeds", type=_ints, default=[1, 2, 3, 4])
    own.add_argument("--loads", type=_floats, default=LOADS, help="to the knee (default 0.9,1.2,1.5)")
    own.add_argument("--sessions", type=int, default=20, help="of each run, for each replica (default 20)")
    own.add_argument("--alone", action="store_true", help="also several that know nothing of one another")
    own.add_argument("--knee", type=float, help="sessions an hour of the fleet (default: measured)")
    options, _ = own.parse_known_args(argv)
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(options, is_quick, verdict, tell),
        quick="two seeds, eight sessions for each replica",
        own=own,
        argv=argv,
    )


def _ints(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _floats(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
