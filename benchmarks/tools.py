"""The tools' hosts are the bottleneck: what does a window that follows them gain?

    python -m benchmarks.tools WORKLOAD --fleet FLEET.toml --per-h N [--times 2] [--seeds 1,2] [--quick]

Every tool of the workload needs a core; there are so many that tools ask for `--times` as much as they have,
at a load that the engines bear. The gateway's brain as it is by default, with and without a probe on the
hosts, against itself with a window that follows the engines alone, and the fixed cap that is best in
hindsight. Everything is simulated; hosts share their cores, and lose nothing by it.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.simulations.workloads import load
from benchmarks.steps import on_cores
from benchmarks.verdict import Verdict
from gateway.simulator.baselines.spec import parse_policies
from gateway.simulator.driver import ClientConfig
from gateway.simulator.experiment.draw import Arrivals, draw
from gateway.simulator.fleet import FleetSpec, ToolHostGroup, decode_fleet
from gateway.simulator.results import Ignore, SessionOutcome
from gateway.simulator.run import simulate
from gateway.workload.trace.format import Session

ENGINES_ALONE: Final = "turnpike:tools=0"
PROBED: Final = "turnpike with a probe"
CAPS: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Sessions for each core."""


class Completions(Ignore):
    def __init__(self) -> None:
        self.each_s: list[float] = []

    def session_done(self, outcome: SessionOutcome) -> None:
        self.each_s.append(outcome.end_s - outcome.arrival_s)


def cores_for(sessions: Sequence[Session], per_h: float, times: float) -> float:
    """So many that tools ask for `times` as much."""
    work_s = [
        sum(tool.duration_s for thread in each.threads for turn in thread.turns for tool in turn.tools)
        for each in sessions
    ]
    return statistics.mean(work_s) * per_h / 3600 / times


def play(policy: str, sessions: list[Session], fleet: FleetSpec, seed: int) -> float:
    """The mean completion, in seconds."""
    if policy == PROBED:
        (group,) = fleet.tool_hosts
        probed = msgspec.structs.replace(group, has_probe=True)
        policy, fleet = "turnpike", msgspec.structs.replace(fleet, tool_hosts=(probed,))
    plan = parse_policies(policy)[0].variants[0].plan(fleet)
    found = Completions()
    client = ClientConfig(max_retries=1_000_000)
    simulate(
        sessions, plan.fleet, plan.make_brain, options=plan.options, client=client, seed=seed, sink=found
    )
    return statistics.mean(found.each_s)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.tools", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("workload", type=Path)
    parser.add_argument("--fleet", type=Path, required=True)
    parser.add_argument("--per-h", type=float, required=True, help="sessions an hour")
    parser.add_argument("--times", type=float, default=2.0, help="what tools ask for (default 2)")
    parser.add_argument("--seeds", default="1", help="such as 3,4 (default 1)")
    parser.add_argument("--sessions", type=int, default=120, help="(default 120)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="40 sessions")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    options = parser.parse_args(argv)
    fleet = decode_fleet(options.fleet.read_bytes())
    workload = [on_cores(each) for each in load(options.workload, fleet).sessions]
    cores = cores_for(workload, options.per_h, options.times)
    fleet = msgspec.structs.replace(fleet, tool_hosts=(ToolHostGroup(cores=cores),))
    caps = [f"session-cap:n={max(1, round(times * cores))}" for times in CAPS]
    policies = (ENGINES_ALONE, "turnpike", PROBED, *caps)
    found: dict[str, list[float]] = {policy: [] for policy in policies}
    count = 40 if options.quick else options.sessions
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = []
        for seed in [int(each) for each in options.seeds.split(",")]:
            drawn = draw(workload, arrivals=Arrivals.POISSON, per_h=options.per_h, count=count, seed=seed)
            sessions = list(drawn)
            runs += [(policy, pool.submit(play, policy, sessions, fleet, seed)) for policy in policies]
        for policy, run in runs:
            found[policy].append(run.result())
            print(f"{policy}: mean {found[policy][-1]:.0f} s", file=sys.stderr, flush=True)
    verdict = judge({policy: statistics.mean(each_s) for policy, each_s in found.items()}, caps, cores)
    return verdict.report(is_json_alone=options.json)


def judge(mean_s: dict[str, float], caps: Sequence[str], cores: float) -> Verdict:
    verdict = Verdict()
    verdict.tell("cores", cores)
    alone_s, best = mean_s[ENGINES_ALONE], min(caps, key=mean_s.__getitem__)
    verdict.tell("engines_alone_completion_s", alone_s)
    verdict.tell("best_cap", float(best.rpartition("=")[2]))
    verdict.tell("gain_of_best_cap", alone_s / mean_s[best])
    verdict.at_least("gain_with_a_probe", alone_s / mean_s[PROBED], 1.3)
    verdict.at_most("with_a_probe_against_best_cap", mean_s[PROBED] / mean_s[best], 1.1)
    verdict.at_least("gain_without_a_probe", alone_s / mean_s["turnpike"], 1.0)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
