"""What the gateway says that it saved, against what an A/B of the same sessions measures.

    python -m benchmarks.savings [--workload FILE] [--replicas 4] [--seeds 1,2,3,4,5] [--loads 10,25,60]
        [--quick] [--json]

A: this gateway's brain, whose estimate (`gateway/telemetry/savings.py`) is read at the end. B: stock vLLM
behind round robin. Both serve the same sessions, which arrive at the same times, on simulated replicas. The
truth is what B's engines were busy for longer than A's: the replica-seconds that were saved. B runs twice,
with other noise of its engines' steps (2 %), which means nothing: by how much that changes what was saved
(`chance`), nobody can foresee.

Played twice: the gateway was told nothing of its replicas, and it was told their profile (`pools.profile`),
which says what a long prompt costs before one was seen. The estimate is to be within 15 % of that, as the
mean over the seeds, at every load; loads are sessions an hour for each replica. Told besides: the error bar
that the gateway gives, what the prompts alone make of the difference, and by how much a balancer that knows
no sessions was taken to find too much or too little.

A seed at a load takes a minute of a core, all of them a quarter of an hour; `--quick` plays five seeds at the
last load.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.simulations.workloads import MIXES, composed, load
from benchmarks.verdict import Interval, Verdict
from gateway.config.profiles import load_profile
from gateway.core.coordinator import Coordinator
from gateway.domain.ids import PoolId
from gateway.domain.records import Record
from gateway.telemetry.savings import Saved, Savings
from lab.simulator.baselines.plan import Plan
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.brain import Brain
from lab.simulator.driver import ClientConfig
from lab.simulator.experiment.draw import Arrivals, draw
from lab.simulator.fleet import FleetSpec, decode_fleet
from lab.simulator.results import Ignore, Sink, Totals
from lab.simulator.run import POOL, simulate
from lab.workload.trace.format import Session

OFF: Final = 0.15
_RETRIES: Final = 1_000_000
"""Of a refused turn: a session that gives up would make a run look shorter than it was."""
_OTHER: Final = 1_000_000
"""Far from any seed: of B's second run."""
_FLEET: Final = 'noise = 0.02\n[[replicas]]\nprofile = "qwen3-coder-30b-a3b@h200"\ncount = %d\n'


class Outcome(msgspec.Struct, frozen=True):
    told: Saved
    """By the gateway."""
    ours: Totals
    theirs: Totals
    again: Totals
    """B's, with other noise."""

    @property
    def saved_s(self) -> float:
        """The truth: so much longer B's engines were busy."""
        return self.theirs.busy_s - self.ours.busy_s

    @property
    def chance(self) -> float:
        """A share of what was saved."""
        return abs(self.again.busy_s - self.theirs.busy_s) / self.saved_s


class _Records(Ignore):
    def __init__(self) -> None:
        self.savings: Savings | None = None

    def record(self, record: Record) -> None:
        assert self.savings is not None
        self.savings.take([record])


def play_ours(
    fleet: FleetSpec, sessions: Sequence[Session], seed: int, *, knows: bool
) -> tuple[Saved, Totals]:
    """A. `knows`: the gateway is told its replicas' profile."""
    sink = _Records()
    ours = parse_policies("turnpike")[0].variants[0].plan(fleet)
    fits = ours.kv_tokens(ours.fleet)

    def brain(spec: FleetSpec) -> Brain:
        made = ours.make_brain(spec)
        assert isinstance(made, Coordinator)
        if knows:
            made.forecasts.believe({name: load_profile(group.profile) for name, group in spec.each()})
        sink.savings = Savings(made.forecasts, kv_tokens=lambda name: fits[str(name)], replicas=made.fleet.up)
        return made

    totals = _totals(sessions, ours, brain, seed, sink)
    assert sink.savings is not None
    sink.savings.settle()
    return sink.savings.saved()[PoolId(POOL)], totals


def play_theirs(fleet: FleetSpec, sessions: Sequence[Session], seed: int) -> Totals:
    """B."""
    theirs = parse_policies("stock")[0].variants[0].plan(fleet)
    return _totals(sessions, theirs, theirs.make_brain, seed, Ignore())


def _totals(
    sessions: Sequence[Session], plan: Plan, brain: Callable[[FleetSpec], Brain], seed: int, sink: Sink
) -> Totals:
    return simulate(
        sessions,
        plan.fleet,
        brain,
        options=plan.options,
        client=ClientConfig(max_retries=_RETRIES),
        seed=seed,
        sink=sink,
    )


def judge(at: str, runs: Sequence[Outcome], verdict: Verdict) -> None:
    true_s = [run.saved_s for run in runs]
    said_s = [run.told.seconds for run in runs]
    off = Interval.of([said / true - 1 for said, true in zip(said_s, true_s, strict=True)])
    verdict.at_most(f"{at}_off", abs(off.mean), OFF)
    verdict.tell(f"{at}_off_low", off.low)
    verdict.tell(f"{at}_off_high", off.high)
    verdict.tell(f"{at}_saved_s", _mean(true_s))
    verdict.tell(f"{at}_saved_share", _mean([t / r.theirs.busy_s for t, r in zip(true_s, runs, strict=True)]))
    verdict.tell(f"{at}_told_s", _mean(said_s))
    bars = [run.told.error_s for run in runs]
    verdict.tell(f"{at}_bar_s", _mean(bars))
    covered = [abs(s - t) <= b for s, t, b in zip(said_s, true_s, bars, strict=True)]
    verdict.tell(f"{at}_bar_covers", _mean([float(each) for each in covered]))
    verdict.tell(f"{at}_chance", _mean([run.chance for run in runs]))
    verdict.tell(f"{at}_chance_most", max(run.chance for run in runs))
    tokens = [
        (run.theirs.prompt_tokens - run.theirs.cached_tokens)
        - (run.ours.prompt_tokens - run.ours.cached_tokens)
        for run in runs
    ]
    told = [run.told.tokens for run in runs]
    verdict.tell(f"{at}_tokens_off", _mean([t / m - 1 for t, m in zip(told, tokens, strict=True)]))
    verdict.tell(
        f"{at}_s_per_token_off",
        _mean([(s / t) / (ts / tt) - 1 for s, t, ts, tt in zip(said_s, told, true_s, tokens, strict=True)]),
    )
    for name in ("ours", "theirs"):
        totals: list[Totals] = [getattr(run, name) for run in runs]
        verdict.tell(f"{at}_{name}_hits", _mean([each.cached_tokens / each.prompt_tokens for each in totals]))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.savings", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workload", default="saga-tenants", help=f"a file, or one of {', '.join(MIXES)}")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=10, help="of each run, for each replica (default 10)")
    parser.add_argument(
        "--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2, 3, 4, 5]
    )
    parser.add_argument(
        "--loads", type=lambda text: [float(each) for each in text.split(",")], default=[10.0, 25.0, 60.0]
    )
    parser.add_argument("--quick", action="store_true", help="the last load alone")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    options = parser.parse_args()
    if options.quick:
        options.loads = options.loads[-1:]
    fleet = decode_fleet((_FLEET % options.replicas).encode())
    verdict = Verdict()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.workload)
        if options.workload in MIXES:
            path = composed(options.workload, Path(folder), count=400)
        pool = load(path, fleet).sessions
    for per_h in options.loads:
        runs: dict[str, list[Outcome]] = {"untold": [], "told": []}
        for seed in options.seeds:
            count = options.sessions * options.replicas
            sessions = draw(
                pool, arrivals=Arrivals.POISSON, per_h=per_h * options.replicas, count=count, seed=seed
            )
            theirs, again = (play_theirs(fleet, sessions, each) for each in (seed, seed + _OTHER))
            for name, found in runs.items():
                run = Outcome(*play_ours(fleet, sessions, seed, knows=name == "told"), theirs, again)
                found.append(run)
                line = f"{per_h:g}/h seed {seed}, {name} of profiles: {run.saved_s:.0f} s saved, "
                print(f"{line}{run.told.seconds:.0f} s said", file=sys.stderr, flush=True)
        for name, found in runs.items():
            judge(f"{per_h:g}_per_h_{name}", found, verdict)
    return verdict.report(is_json_alone=options.json)


if __name__ == "__main__":
    sys.exit(main())
