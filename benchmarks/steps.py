"""The world changes: does the window follow?

    python -m benchmarks.steps WORKLOAD --fleet FLEET.toml --knee PER_H [--seeds 1,2] [--quick] [--json]

The load doubles, the load halves, a replica is lost, tools take five times as long, contexts become some
three times as long (the workload's shortest third of sessions, then its longest). The gateway's brain, as it
is by default and told nothing, against the fixed cap that is best in hindsight for those sessions that arrive
20 median turn times after the change, or later: their mean completion within 1.25 times, and the hit rate
from then on no less than three quarters of that cap's. `--knee`: of the strong baseline, in sessions an hour
for each replica, as `benchmarks.admission` finds it. Everything is simulated.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.simulations.workloads import Workload, load
from benchmarks.verdict import Verdict
from gateway.simulator.baselines.plan import Plan
from gateway.simulator.baselines.spec import parse_policies
from gateway.simulator.driver import ClientConfig
from gateway.simulator.experiment.draw import Arrivals, draw
from gateway.simulator.fleet import Change, FleetSpec, ToolHostGroup, decode_fleet
from gateway.simulator.results import Ignore, ReplicaSample, SessionOutcome, TurnOutcome
from gateway.simulator.run import simulate
from gateway.workload.trace.format import Session

SHARES: Final = (0.3, 0.5, 0.65, 0.8, 1.0, 1.3)
"""Caps, relative to how many sessions fill the cache."""
SETTLED_AFTER: Final = 20
"""Median turn times."""
WITHIN: Final = 1.25
HITS: Final = 0.75
SLOWER: Final = 0.2


class World(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sessions: list[Session]
    """With their arrivals."""
    fleet: FleetSpec
    changes_s: float
    fits: float
    """Sessions that fill a replica's cache, after the change."""


class After(Ignore):
    """What became of those that arrived after a time."""

    def __init__(self, changes_s: float) -> None:
        self._changes_s = changes_s
        self._sessions: list[tuple[float, float]] = []
        self._turns_s: list[float] = []
        self._samples: list[tuple[float, int, int]] = []

    def turn_done(self, outcome: TurnOutcome) -> None:
        self._turns_s.append(outcome.end_s - outcome.arrival_s)

    def session_done(self, outcome: SessionOutcome) -> None:
        self._sessions.append((outcome.arrival_s, outcome.end_s - outcome.arrival_s))

    def sample(self, at_s: float, replicas: Sequence[ReplicaSample]) -> None:
        prompt = sum(replica.prompt_tokens for replica in replicas)
        self._samples.append((at_s, prompt, sum(replica.cached_tokens for replica in replicas)))

    @property
    def median_turn_s(self) -> float:
        return statistics.median(self._turns_s)

    def completion_s(self, settled_s: float) -> float:
        since_s = self._changes_s + settled_s
        return statistics.mean(took_s for arrival_s, took_s in self._sessions if arrival_s >= since_s)

    def hit_rate(self, settled_s: float) -> float:
        since = [each for each in self._samples if each[0] >= self._changes_s + settled_s]
        return sum(cached for _, _, cached in since) / max(1, sum(prompt for _, prompt, _ in since))


def worlds(workload: Workload, fleet: FleetSpec, per_h: float, count: int, seed: int) -> list[World]:
    """`per_h`: of one replica, at the knee."""
    replicas = len(fleet.each())
    by_size = sorted(workload.sessions, key=lambda session: session.peak_tokens)
    third = len(by_size) // 3
    hosts = (ToolHostGroup(cores=16.0 * replicas, has_probe=True),)

    def arriving(name: str, before: float, after: float, among: Sequence[Sequence[Session]]) -> World:
        early = draw(
            among[0], arrivals=Arrivals.POISSON, per_h=before * per_h * replicas, count=count, seed=seed
        )
        late = draw(
            among[1], arrivals=Arrivals.POISSON, per_h=after * per_h * replicas, count=count, seed=seed + 1000
        )
        changes_s = count * 3600 / (before * per_h * replicas)
        moved = [
            msgspec.structs.replace(each, id=f"{each.id}/late", arrival_s=each.arrival_s + changes_s)
            for each in late
        ]
        return World(
            name=name,
            sessions=early + moved,
            fleet=fleet,
            changes_s=changes_s,
            fits=_fits(fleet, among[1]),
        )

    everybody = [workload.sessions, workload.sessions]
    calm = arriving("", 0.9, 0.9, everybody)

    def changed(name: str, change: Callable[[float], Change], **more: object) -> World:
        told = msgspec.structs.replace(fleet, changes=(change(calm.changes_s),), **more)
        return msgspec.structs.replace(calm, name=name, fleet=told)

    found = [
        arriving("load_doubles", 0.6, 1.2, everybody),
        arriving("load_halves", 1.4, 0.7, everybody),
        msgspec.structs.replace(
            changed("tools_slow_down", lambda at_s: Change(at_s=at_s, tool_speed=SLOWER), tool_hosts=hosts),
            sessions=[on_cores(session) for session in calm.sessions],
        ),
        arriving("contexts_grow", 0.9, 0.9, [by_size[:third], by_size[-third:]]),
    ]
    if replicas > 1:
        found.append(changed("a_replica_is_lost", lambda at_s: Change(at_s=at_s, lost=f"sim-{replicas - 1}")))
    return found


def on_cores(session: Session) -> Session:
    """The same, with a core for each of its tools."""
    swap = msgspec.structs.replace
    return swap(
        session,
        threads=tuple(
            swap(
                thread,
                turns=tuple(
                    swap(turn, tools=tuple(swap(tool, cpu_cores=1.0) for tool in turn.tools))
                    for turn in thread.turns
                ),
            )
            for thread in session.threads
        ),
    )


def _fits(fleet: FleetSpec, sessions: Sequence[Session]) -> float:
    tokens = min(Plan.of(fleet).kv_tokens(fleet).values())
    lengths = [turn.input_tokens for each in sessions for thread in each.threads for turn in thread.turns]
    return tokens / statistics.mean(lengths)


def play(policy: str, world: World, seed: int) -> After:
    (spec,) = parse_policies(policy)
    plan = spec.variants[0].plan(world.fleet)
    found = After(world.changes_s)
    simulate(
        iter(world.sessions),
        plan.fleet,
        plan.make_brain,
        options=plan.options,
        client=ClientConfig(max_retries=1_000_000),
        seed=seed,
        sink=found,
        sample_every_s=10.0,
    )
    return found


def judge(verdict: Verdict, found: dict[str, dict[str, list[After]]]) -> None:
    """By world, by policy, of each seed."""
    for world, of_policy in found.items():
        ours, caps = (
            of_policy["turnpike"],
            {name: each for name, each in of_policy.items() if name != "turnpike"},
        )
        settled_s = SETTLED_AFTER * statistics.median(each.median_turn_s for each in ours)

        def mean_s(runs: list[After], settled_s: float = settled_s) -> float:
            return statistics.mean(run.completion_s(settled_s) for run in runs)

        best = min(caps, key=lambda name: mean_s(caps[name]))
        hits = [statistics.mean(run.hit_rate(settled_s) for run in runs) for runs in (ours, caps[best])]
        verdict.at_most(f"{world}_against_best_cap", mean_s(ours) / mean_s(caps[best]), WITHIN)
        verdict.at_least(f"{world}_hits_against_best_cap", hits[0] / max(1e-9, hits[1]), HITS)
        verdict.tell(f"{world}_completion_s", mean_s(ours))
        verdict.tell(f"{world}_best_cap", float(best.rpartition("=")[2]))
        verdict.tell(f"{world}_settled_after_s", settled_s)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.steps", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("workload", type=Path)
    parser.add_argument("--fleet", type=Path, required=True)
    parser.add_argument("--knee", type=float, required=True, help="sessions an hour for each replica")
    parser.add_argument("--seeds", default="1", help="such as 3,4 (default 1)")
    parser.add_argument("--sessions", type=int, default=80, help="before and after the change, a replica")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="30 sessions, three caps")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    options = parser.parse_args(argv)
    fleet = decode_fleet(options.fleet.read_bytes())
    workload = load(options.workload, fleet)
    count = (30 if options.quick else options.sessions) * len(fleet.each())
    shares = SHARES[1::2] if options.quick else SHARES
    found: dict[str, dict[str, list[After]]] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = []
        for seed in [int(each) for each in options.seeds.split(",")]:
            for world in worlds(workload, fleet, options.knee, count, seed):
                caps = sorted({max(1, round(share * world.fits)) for share in shares})
                policies = ("turnpike", *(f"session-cap:n={cap}" for cap in caps))
                runs += [(world.name, policy, pool.submit(play, policy, world, seed)) for policy in policies]
        for name, policy, run in runs:
            found.setdefault(name, {}).setdefault(policy, []).append(run.result())
            print(f"{name}: {policy}", file=sys.stderr, flush=True)
    verdict = Verdict()
    judge(verdict, found)
    return verdict.report(is_json_alone=options.json)


if __name__ == "__main__":
    sys.exit(main())
