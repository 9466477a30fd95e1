"""Fairness: are promises kept to light tenants and to heavy ones, and what can one tenant do to the others?

    python -m benchmarks.fairness [--seeds 1,2] [--plugin] [--replicas 4] [--fleet FILE] [--quick] [--json]

SAGA's mix of ten tenants (3 heavy, 4 medium, 3 light) on replicas like SAGA's, at 80 % of the knee of the
strong baseline; a promise is 1.5 times what a session takes alone. Beside the gateway's brain, as it is,
stand the strong baseline and earliest-deadline-first, which knows what sessions take. Then one of the heavy
tenants asks for as much again as all tenants together. Everything is simulated.

SAGA had 16 such replicas. On a single one some three sessions are served at a time, so that ten tenants
wait for each other whatever is decided; four show what one does to the others (`--replicas 1`, to compare).
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.simulations.knee import Slow, find_knee
from benchmarks.simulations.workloads import composed, load
from benchmarks.verdict import Verdict
from gateway.simulator.baselines.spec import parse_policies
from gateway.simulator.driver import ClientConfig
from gateway.simulator.experiment.draw import Arrivals, draw
from gateway.simulator.fleet import FleetSpec, decode_fleet
from gateway.simulator.results import Ignore, SessionOutcome
from gateway.simulator.run import simulate
from gateway.workload.trace.format import Session

FLEET = Path(__file__).resolve().parent / "simulations/saga.toml"
ALPHA, LOAD, ADVERSARY = 1.5, 0.8, "heavy-1"
STRONG: Final = "affinity"
AT_A_TIME: Final = (3, 6, 12)
"""Sessions of a replica, with earliest deadline first; the best of them counts."""


class _Outcomes(Ignore):
    """The slowdown of every session, by tenant."""

    def __init__(self) -> None:
        self.by_tenant: dict[str, list[float]] = {}

    def session_done(self, outcome: SessionOutcome) -> None:
        slowdown = (outcome.end_s - outcome.arrival_s) / outcome.isolated_s
        self.by_tenant.setdefault(outcome.tenant, []).append(float("inf") if outcome.failed else slowdown)

    def of(self, *kinds: str) -> list[float]:
        """Of the tenants whose names begin so, but for the adversary."""
        return [
            slowdown
            for tenant, slowdowns in self.by_tenant.items()
            if tenant.startswith(kinds) and tenant != ADVERSARY
            for slowdown in slowdowns
        ]

    def all(self) -> list[float]:
        return [slowdown for slowdowns in self.by_tenant.values() for slowdown in slowdowns]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.fairness", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[1])
    parser.add_argument("--sessions", type=int, default=60, help="for each replica (default 60)")
    parser.add_argument("--fleet", type=Path, default=FLEET, help="what it is played on")
    parser.add_argument("--replicas", type=int, default=4, help="of each replica in it so many (default 4)")
    parser.add_argument("--plugin", action="store_true", help="our engines follow hints")
    parser.add_argument("--knee", type=float, help="sessions an hour; measured if it is not given")
    parser.add_argument("--quick", action="store_true", help="15 sessions for each replica")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    options = parser.parse_args()
    if options.quick:
        options.sessions = 15
    options.sessions *= options.replicas
    fleet = times(decode_fleet(options.fleet.read_bytes()), options.replicas)
    with tempfile.TemporaryDirectory() as folder:
        workload = load(composed("saga-tenants", Path(folder), count=240), fleet).sessions
    verdict = Verdict()
    judge(verdict, workload, fleet, options)
    return verdict.report(is_json_alone=options.json)


def times(fleet: FleetSpec, count: int) -> FleetSpec:
    groups = (msgspec.structs.replace(group, count=count * group.count) for group in fleet.replicas)
    return msgspec.structs.replace(fleet, replicas=tuple(groups))


def judge(
    verdict: Verdict, workload: Sequence[Session], fleet: FleetSpec, options: argparse.Namespace
) -> None:
    seeds, count = options.seeds, options.sessions
    ours_is = "turnpike+plugin" if options.plugin else "turnpike"

    def drawn(per_h: float, seed: int) -> list[Session]:
        return draw(workload, arrivals=Arrivals.POISSON, per_h=per_h, count=count, seed=seed)

    def measure(per_h: float) -> float:
        sessions = drawn(per_h, seeds[0])
        means = [_mean(_play(policy, sessions, fleet, 0).all()) for policy in (STRONG, "infinite-kv")]
        return Slow(*means).measure

    knee = options.knee or find_knee(measure, 12.0 * options.replicas, at_most=1.0)[0]
    per_h = verdict.tell("sessions_per_h", LOAD * knee).value or 0.0
    found: dict[str, list[_Outcomes]] = {}
    bounds = "edf:n=" + "/".join(str(each * options.replicas) for each in AT_A_TIME)
    for policy in (ours_is, STRONG, *(variant.label for variant in parse_policies(bounds)[0].variants)):
        found[policy] = [_play(policy, drawn(per_h, seed), fleet, seed) for seed in seeds]
    edf = max((name for name in found if name.startswith("edf")), key=lambda name: _kept(found[name], ""))
    for name, kinds in (("overall", ("",)), ("light", ("light",))):
        ours, bound = _kept(found[ours_is], *kinds), _kept(found[edf], *kinds)
        verdict.at_least(f"{name}_kept", ours, min(0.99, bound - 0.02))
        verdict.tell(f"{name}_kept_by_affinity", _kept(found[STRONG], *kinds))
        verdict.tell(f"{name}_kept_by_edf", bound)
    verdict.at_most("light_p99_slowdown", _p99(found[ours_is], "light"), 1.8)
    verdict.tell("light_p99_slowdown_by_edf", _p99(found[edf], "light"))
    for policy, told in ((ours_is, ""), (STRONG, "_by_affinity")):
        attacked = [
            _play(policy, _attacked(drawn(per_h, seed), workload, seed), fleet, seed) for seed in seeds
        ]
        moved = _p99(attacked, "") / _p99(found[policy], "")
        if policy == ours_is:
            verdict.at_most("others_p99_moved_by_an_adversary", moved, 1.2)
            for kind in ("light", "medium", "heavy"):
                verdict.tell(f"{kind}_p99_moved", _p99(attacked, kind) / _p99(found[policy], kind))
                verdict.tell(f"{kind}_p99_slowdown_attacked", _p99(attacked, kind))
        else:
            verdict.tell(f"others_p99_moved_by_an_adversary{told}", moved)
        verdict.tell(f"others_p99_slowdown_attacked{told}", _p99(attacked, ""))


def _play(policy: str, sessions: Sequence[Session], fleet: FleetSpec, seed: int) -> _Outcomes:
    plan = parse_policies(policy)[0].variants[0].plan(fleet)
    for session in sessions:
        if plan.foresee is not None:
            plan.foresee(session)
    heard = _Outcomes()
    client = ClientConfig(max_retries=1_000_000)
    simulate(
        sessions, plan.fleet, plan.make_brain, options=plan.options, client=client, seed=seed, sink=heard
    )
    print(f"{policy}: mean slowdown {_mean(heard.all()):.2f}", file=sys.stderr, flush=True)
    return heard


def _attacked(sessions: list[Session], workload: Sequence[Session], seed: int) -> list[Session]:
    """The adversary asks for as many sessions again, of its own kind, while the others come as they did."""
    dice = random.Random(f"adversary {seed}")
    own = [session for session in workload if session.tenant == ADVERSARY]
    until_s = sessions[-1].arrival_s
    more = [
        msgspec.structs.replace(dice.choice(own), id=f"more-{number}", arrival_s=dice.random() * until_s)
        for number in range(len(sessions))
    ]
    return sorted([*sessions, *more], key=lambda session: session.arrival_s)


def _kept(runs: Iterable[_Outcomes], *kinds: str) -> float:
    slowdowns = [slowdown for run in runs for slowdown in (run.of(*kinds) if kinds != ("",) else run.all())]
    return sum(slowdown <= ALPHA for slowdown in slowdowns) / len(slowdowns)


def _p99(runs: Iterable[_Outcomes], kind: str) -> float:
    slowdowns = sorted(slowdown for run in runs for slowdown in run.of(kind))
    return slowdowns[min(len(slowdowns) - 1, int(0.99 * len(slowdowns)))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    sys.exit(main())
