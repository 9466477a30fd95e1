"""Admission: does it harm nobody below the knee, what does it gain beyond, and what does a decision cost?

    python -m benchmarks.admission [--workload FILE --fleet FLEET.toml] [--quick] [--json]

Decisions: 5,000 sessions wait, of one tenant, of ten, and of as many tenants; sessions come, end and enter.
With a workload, too: the knee of the strong baseline (prefix cache and session affinity) is measured; then
the gateway's brain, as it is by default, against that baseline and
the best fixed window in hindsight, at loads relative to the knee. Everything is simulated on one seed each.
"""

import argparse
import gc
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.simulations.knee import find_knee
from benchmarks.simulations.workloads import Workload, load
from benchmarks.verdict import Verdict
from gateway.simulator.baselines.plan import Plan
from gateway.simulator.baselines.spec import parse_policies
from gateway.simulator.experiment.parallel import run_all
from gateway.simulator.experiment.trial import Setting, Trial
from gateway.simulator.fleet import FleetSpec, decode_fleet
from tests.admission.applicants import Play, answered

WAITING = 5000
_OURS = "turnpike"
_STRONG = "affinity"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.admission", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workload", type=Path, help="a workload file")
    parser.add_argument("--fleet", type=Path, help="the fleet that it is played on")
    parser.add_argument("--sessions", type=int, default=120, help="of each simulation (default 120)")
    parser.add_argument("--seeds", type=int, default=1, help="of each load (default 1)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="fewer decisions, 40 sessions")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    options = parser.parse_args()
    verdict = Verdict()
    for tenants in (1, 10, WAITING):
        p99_ms = decisions(tenants, rounds=300 if options.quick else 3000)
        verdict.at_most(f"decision_p99_ms_{tenants}_tenants", p99_ms, 2.0)
    if options.workload is not None:
        fleet = decode_fleet(options.fleet.read_bytes())
        compare(verdict, load(options.workload, fleet), fleet, options)
    for name, figure in verdict.figures.items():
        if not options.json:
            print(
                f"{name:<40} {figure.value!s:>10}  {figure.target or '':<10} {'' if figure.ok else 'MISSED'}"
            )
    print(verdict.as_json())
    return verdict.exit_status


def decisions(tenants: int, *, rounds: int, places: int = 20) -> float:
    """The 99th percentile of what an event costs admission, in milliseconds of processor time."""
    play = Play(policy="session-cap", session_cap=places, max_waiting=2 * WAITING)
    rng = random.Random(1)
    spent: list[float] = []

    def timed(call: Any, *values: Any, **fields: Any) -> Any:
        began = time.process_time()
        found = call(*values, **fields)
        spent.append(time.process_time() - began)
        return found

    def comes(number: int) -> None:
        timed(play.ask, f"s{number}", tenant=f"t{number % tenants}", body_bytes=rng.randrange(1000, 400_000))

    for number in range(WAITING + places):
        play.now += 0.001
        comes(number)
    gc.collect()
    gc.freeze()
    spent.clear()
    for number in range(rounds):
        play.now += 0.02
        session = rng.choice(sorted({str(each.session) for each in play.running.values()}))
        timed(play.end, session, outcome=answered(tokens=10_000))
        if number % 2:
            timed(play.finish, session)
        comes(WAITING + places + number)
        if not play.running:
            play.later(0.2)
    gc.unfreeze()
    return sorted(spent)[int(0.99 * len(spent))] * 1e3


def compare(verdict: Verdict, workload: Workload, fleet: FleetSpec, options: argparse.Namespace) -> None:
    sessions = 40 if options.quick else options.sessions
    setting = Setting(workload=workload.sessions, fleet=fleet, sessions=sessions, shown=0)
    fits = sum(Plan.of(fleet).kv_tokens(fleet).values()) / workload.mean_context
    caps = sorted({max(1, round(share * fits)) for share in (0.6, 0.8, 1.0, 1.3)})
    fixed = [f"session-cap:n={cap}" for cap in caps] + ["footprint:f=0.8", "footprint:f=0.9"]
    policies = {text: parse_policies(text)[0].variants[0] for text in (_STRONG, _OURS, *fixed)}

    def run(texts: list[str], per_h: float, *, jobs: int) -> dict[str, dict[str, float]]:
        trials = [
            Trial(policies[text], per_h, seed) for text in texts for seed in range(1, options.seeds + 1)
        ]
        found = run_all(setting, trials, jobs=jobs, progress=lambda *_: None)
        sums: dict[str, dict[str, float]] = {}
        for number, figures in enumerate(found):
            of_policy = sums.setdefault(texts[number // options.seeds], {})
            for metric, value in figures.metrics.items():
                of_policy[metric] = of_policy.get(metric, 0.0) + (value or 0.0) / options.seeds
        return sums

    knee, _ = find_knee(lambda per_h: run([_STRONG], per_h, jobs=1)[_STRONG]["slowdown_mean"], 60.0)
    verdict.tell("knee_per_h", knee)
    below = run([_STRONG, _OURS], 0.9 * knee, jobs=options.jobs)
    strong, ours = below[_STRONG], below[_OURS]
    verdict.at_most("below_mean", ours["completion_mean_s"] / strong["completion_mean_s"], 1.02)
    verdict.at_most("below_p99", ours["completion_p99_s"] / strong["completion_p99_s"], 1.05)
    for relative in (1.2, 1.5):
        found = run([_STRONG, _OURS, *fixed], relative * knee, jobs=options.jobs)
        strong, ours = found[_STRONG], found[_OURS]
        best_s = min(found[text]["completion_mean_s"] for text in fixed)
        at = f"at_{relative:g}_knee"
        verdict.at_least(f"{at}_mean_gain", strong["completion_mean_s"] / ours["completion_mean_s"], 4.0)
        verdict.at_least(f"{at}_throughput_gain", ours["sessions_per_h"] / strong["sessions_per_h"], 1.8)
        verdict.at_most(f"{at}_mean_against_best_fixed", ours["completion_mean_s"] / best_s, 1.1)
        verdict.tell(f"{at}_goodput_2", ours["goodput_2"])
        verdict.tell(f"{at}_failed", ours["failed"])


if __name__ == "__main__":
    sys.exit(main())
