"""Gateway and plugin together: what does each part gain where engines are crowded?

    python -m benchmarks.whole WORKLOAD --fleet FLEET.toml --per-h N [--seeds 1,2] [--quick] [--json]

The same sessions behind stock vLLM with session affinity; behind the gateway; behind the gateway with engines
that carry `turnpike-vllm` and follow its hints; the same without retention and eviction; and the same with
one P_reuse and TTL for all instead of those that the workflow view foresees. Everything is simulated, by the
code that is loaded live. Gains are means over the seeds; judged is the least.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from benchmarks.simulations.workloads import load
from benchmarks.verdict import Verdict
from gateway.simulator.baselines.spec import parse_policies
from gateway.simulator.experiment.parallel import run_all
from gateway.simulator.experiment.trial import Setting, Trial
from gateway.simulator.fleet import decode_fleet
from gateway.simulator.measures.figures import RunFigures

STRONG: Final = "affinity"
GATEWAY: Final = "turnpike"
WHOLE: Final = "turnpike+plugin"
NOTHING_HELD: Final = "turnpike+plugin:retention=0:eviction=0"
BLIND: Final = "turnpike:foresight=constant+plugin"
POLICIES: Final = (STRONG, GATEWAY, WHOLE, NOTHING_HELD, BLIND)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.whole", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("workload", type=Path)
    parser.add_argument("--fleet", type=Path, required=True)
    parser.add_argument("--per-h", type=float, required=True, help="sessions an hour")
    parser.add_argument("--sessions", type=int, default=80, help="of each simulation (default 80)")
    parser.add_argument("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="one seed, 40 sessions")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.sessions = options.seeds[:1], 40
    fleet = decode_fleet(options.fleet.read_bytes())
    workload = load(options.workload, fleet).sessions
    setting = Setting(workload=workload, fleet=fleet, sessions=options.sessions, shown=0)
    variants = {text: parse_policies(text)[0].variants[0] for text in POLICIES}
    trials = [Trial(variants[text], options.per_h, seed) for seed in options.seeds for text in POLICIES]
    runs = iter(run_all(setting, trials, jobs=options.jobs, progress=_told))
    verdict = judge([{text: next(runs) for text in POLICIES} for _ in options.seeds])
    return verdict.report(is_json_alone=options.json)


def judge(of_seeds: list[dict[str, RunFigures]]) -> Verdict:
    verdict = Verdict()

    def gains(better: str, worse: str, metric: str = "completion_mean_s") -> list[float]:
        return [(of[worse].metrics[metric] or 0.0) / (of[better].metrics[metric] or 1.0) for of in of_seeds]

    verdict.at_least("gateway_gain_least", min(gains(GATEWAY, STRONG)), 1.0)
    verdict.at_least("plugin_gain_least", min(gains(WHOLE, GATEWAY)), 1.0)
    verdict.at_least("foresight_gain_least", min(gains(WHOLE, BLIND)), 1.0)
    for name, better, worse in (
        ("gateway", GATEWAY, STRONG),
        ("plugin", WHOLE, GATEWAY),
        ("retention_and_eviction", WHOLE, NOTHING_HELD),
        ("foresight", WHOLE, BLIND),
        ("whole", WHOLE, STRONG),
    ):
        found = gains(better, worse)
        verdict.tell(f"{name}_gain", sum(found) / len(found))
        found = gains(better, worse, "completion_p90_s")
        verdict.tell(f"{name}_gain_p90", sum(found) / len(found))
    for name, policy in (("stock", STRONG), ("gateway", GATEWAY), ("whole", WHOLE)):
        for metric in ("hit_rate", "goodput_2"):
            values = [of[policy].metrics[metric] or 0.0 for of in of_seeds]
            verdict.tell(f"{metric}_{name}", sum(values) / len(values))
    return verdict


def _told(_: int, trial: Trial, found: RunFigures) -> None:
    mean_s = found.metrics["completion_mean_s"] or 0.0
    print(f"seed {trial.seed} {trial.variant.label}: mean {mean_s:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
