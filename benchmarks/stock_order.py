"""Stock engines that order by `priority`, told by the gateway which requests can wait, against stock FCFS.

    python -m benchmarks.stock_order [--quick] [--json] [--knee N] [--seeds N]

Simulated: vLLM's own scheduler on one H200 with Qwen3-Coder-30B-A3B, behind the same brain, the same sessions
for both (paired seeds; means and their 95 % intervals). Four worlds:

* `as_usual`: agents with two or three turns of 20,000 tokens, a quarter of them background work, of eight
  tenants, at 0.9, 1.2 and 1.5 × the knee of stock vLLM; vLLM's default of 256 requests at a time.
* `few_places`: the same where an engine runs 16 at a time, so that requests wait in it.
* `little_kv`: the same with 0.3 × the memory for KV, at 1.5 × that knee, so that engines preempt; told.
* `bursts`: at 0.5 × the knee people's agents, and every two minutes 60 background requests at once.

At 1.5 × the knee also what else a number could say, by simulated engines that are told the truth: the age of
the task (`oldest-first`) and attained service (`plas`).
"""

import argparse
import math
import multiprocessing
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.command import judged
from benchmarks.simulations.knee import Slow, find_knee
from benchmarks.verdict import Interval, Verdict
from lab.simulator.baselines.plan import Plan
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.engine.options import EngineOptions
from lab.simulator.experiment.draw import Arrivals, draw
from lab.simulator.fleet import FleetSpec, decode_fleet
from lab.simulator.isolated import IsolatedTimes
from lab.simulator.measures.goodput import ALPHAS, is_in_time
from lab.simulator.results import Ignore, SessionOutcome, TurnOutcome
from lab.simulator.run import simulate
from lab.workload.trace.agent_kinds import SEARCH
from lab.workload.trace.agents import session_of
from lab.workload.trace.format import ServiceClass, Session, Thread, Turn

FCFS, OURS = "turnpike", "turnpike:engines=priority"
AGE, SERVICE = "turnpike+oldest-first", "turnpike+plas"
RELATIVE: Final = (0.9, 1.2, 1.5)
PLACES: Final = {"as_usual": 256, "few_places": 16}
KV: Final = {"little_kv": 0.3}
TENANTS: Final = 8
BACKGROUND: Final = 0.25
KNEE_PER_H: Final = 1700.0
"""As measured for the quick run, which does not measure it again."""
BURSTS, BURST, EVERY_S = 4, 60, 120.0
_FLEET: Final = Path(__file__).with_name("simulations") / "h200.toml"


class Run(msgspec.Struct, frozen=True):
    world: str
    policy: str
    per_h: float
    seed: int
    sessions: int


class Found(msgspec.Struct, frozen=True):
    mean_s: float
    slowdown: float
    within: dict[float, float]
    """By α, the share of sessions done within α × isolated."""
    preemptions: int
    reactive_s: float
    reactive_ttft_s: float
    """Of a turn that somebody waits for: mean."""
    background_s: float


class _Seen(Ignore):
    def __init__(self, background: frozenset[str]) -> None:
        self.background = background
        self.sessions: list[SessionOutcome] = []
        self.ttft_s: list[float] = []

    def turn_done(self, outcome: TurnOutcome) -> None:
        if outcome.session not in self.background:
            self.ttft_s.append(outcome.first_token_s - outcome.arrival_s)

    def session_done(self, outcome: SessionOutcome) -> None:
        self.sessions.append(outcome)

    def completion_s(self, service_class: ServiceClass) -> float:
        return statistics.fmean(
            _taken_s(each) for each in self.sessions if each.service_class is service_class
        )


def _taken_s(outcome: SessionOutcome) -> float:
    return outcome.end_s - outcome.arrival_s


def agents(count: int) -> list[Session]:
    dice = random.Random("agents")
    found = []
    for number in range(count):
        session = session_of(SEARCH, dice, id_=f"a{number}")
        is_background = dice.random() < BACKGROUND
        service_class = ServiceClass.PROACTIVE if is_background else ServiceClass.REACTIVE
        tenant = f"t{number % TENANTS}"
        found.append(msgspec.structs.replace(session, tenant=tenant, service_class=service_class))
    return found


def with_bursts(people: Sequence[Session], seed: int) -> list[Session]:
    """Beside them, requests of one turn that nobody waits for, of the same tenants."""
    dice = random.Random(f"bursts {seed}")
    batch = []
    for number in range(BURSTS * BURST):
        turn = Turn(input_tokens=dice.randint(11_000, 21_000), output_tokens=150)
        at_s = EVERY_S * (0.5 + number // BURST) + 0.01 * (number % BURST)
        batch.append(
            Session(
                id=f"b{number}",
                threads=(Thread(turns=(turn,)),),
                arrival_s=at_s,
                tenant=f"t{number % TENANTS}",
                service_class=ServiceClass.PROACTIVE,
            )
        )
    return sorted([*people, *batch], key=lambda session: session.arrival_s)


def fleet(kv: float = 1.0) -> FleetSpec:
    """With so many times the memory for KV."""
    whole = decode_fleet(_FLEET.read_bytes())
    if kv == 1.0:
        return whole
    tokens = min(Plan.of(whole).kv_tokens(whole).values())
    blocks = int(kv * tokens / EngineOptions().block_size)
    groups = tuple(msgspec.structs.replace(group, kv_blocks=blocks) for group in whole.replicas)
    return msgspec.structs.replace(whole, replicas=groups)


def play(run: Run) -> Found:
    options = EngineOptions(max_num_seqs=PLACES.get(run.world, EngineOptions().max_num_seqs))
    plan = parse_policies(run.policy)[0].variants[0].plan(fleet(KV.get(run.world, 1.0)), options)
    everybody = agents(4 * run.sessions)
    if run.world == "bursts":
        everybody = [each for each in everybody if each.service_class is ServiceClass.REACTIVE]
    sessions = draw(everybody, arrivals=Arrivals.POISSON, per_h=run.per_h, count=run.sessions, seed=run.seed)
    if run.world == "bursts":
        sessions = with_bursts(sessions, run.seed)
    background = frozenset(each.id for each in sessions if each.service_class is ServiceClass.PROACTIVE)
    seen = _Seen(background)
    totals = simulate(
        sessions, plan.fleet, plan.make_brain, options=plan.options, seed=run.seed, sink=seen, isolated=_alone
    )
    slowdowns = [(_taken_s(each), each.isolated_s) for each in seen.sessions]
    return Found(
        mean_s=statistics.fmean(taken_s for taken_s, _ in slowdowns),
        slowdown=statistics.fmean(taken_s / alone_s for taken_s, alone_s in slowdowns),
        within={
            alpha: statistics.fmean(is_in_time(taken_s, alpha * alone_s) for taken_s, alone_s in slowdowns)
            for alpha in ALPHAS
        },
        preemptions=totals.preemptions,
        reactive_s=seen.completion_s(ServiceClass.REACTIVE),
        reactive_ttft_s=statistics.fmean(seen.ttft_s),
        background_s=seen.completion_s(ServiceClass.PROACTIVE),
    )


_alone: IsolatedTimes | None = None
"""What sessions take alone, remembered by each process."""
_played: dict[Run, Found] = {}


def play_all(runs: Sequence[Run], *, jobs: int) -> list[Found]:
    global _alone  # noqa: PLW0603 - what a forked process inherits
    import lab.simulator.engine.replica  # noqa: F401, PLC0415 - takes seconds

    if _alone is None:
        bare, options = Plan.of(fleet()), EngineOptions()
        blocks = min(bare.kv_tokens(fleet()).values()) // options.block_size + 1
        _alone = IsolatedTimes(
            bare.profile, kv_blocks=blocks, block_size=options.block_size, max_model_len=options.max_model_len
        )
    if jobs == 1:
        return [play(run) for run in runs]
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        return pool.map(play, runs, chunksize=1)


class Paired(msgspec.Struct, frozen=True):
    """Two policies on the same sessions, seed by seed."""

    theirs: list[Found]
    ours: list[Found]

    def times(self, name: str) -> Interval:
        pairs = zip(self.ours, self.theirs, strict=True)
        return Interval.of([getattr(our, name) / getattr(their, name) for our, their in pairs])

    def more_within(self, alpha: float) -> Interval:
        """Of all sessions, so many more."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return Interval.of([our.within[alpha] - their.within[alpha] for our, their in pairs])


def paired(world: str, ours: str, per_h: float, seeds: Sequence[int], sessions: int, *, jobs: int) -> Paired:
    theirs, own = [[Run(world, policy, per_h, seed, sessions) for seed in seeds] for policy in (FCFS, ours)]
    new = [run for run in (*theirs, *own) if run not in _played]
    _played.update(zip(new, play_all(new, jobs=jobs), strict=True))
    return Paired([_played[run] for run in theirs], [_played[run] for run in own])


def judge(verdict: Verdict, at: str, found: Paired, *, is_above: bool) -> None:
    """No worse below the knee; above it, surely better."""
    mean, within = found.times("mean_s"), found.more_within(4.0)
    if is_above:
        verdict.at_most(f"{at}_mean", mean.mean, 0.99)
        verdict.at_least(f"{at}_more_within_4", within.mean, 0.01)
    else:
        verdict.at_most(f"{at}_mean", mean.mean, 1.01)
        verdict.at_least(f"{at}_more_within_4", within.mean, -0.01)
    tell_rest(verdict, at, found, mean)


def tell_rest(verdict: Verdict, at: str, found: Paired, mean: Interval) -> None:
    tell_bounds(verdict, f"{at}_mean", mean)
    verdict.tell(f"{at}_more_within_2", found.more_within(2.0).mean)
    for name in ("reactive_s", "reactive_ttft_s", "background_s"):
        verdict.tell(f"{at}_{name.removesuffix('_s')}", found.times(name).mean)
    verdict.tell(f"{at}_preemptions_fcfs", sum(each.preemptions for each in found.theirs))
    verdict.tell(f"{at}_preemptions", sum(each.preemptions for each in found.ours))


def tell_bounds(verdict: Verdict, name: str, interval: Interval) -> None:
    if math.isfinite(interval.low):
        verdict.tell(f"{name}_low", interval.low)
        verdict.tell(f"{name}_high", interval.high)


def knee_per_h(*, sessions: int, jobs: int) -> float:
    def measure(per_h: float) -> float:
        runs = [Run("as_usual", policy, per_h, 1, sessions) for policy in ("affinity", "infinite-kv")]
        stock, unlimited = play_all(runs, jobs=jobs)
        return Slow(stock.slowdown, unlimited.slowdown).measure

    knee, _ = find_knee(measure, KNEE_PER_H, at_most=1.0)
    return knee


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--knee", type=float, help="sessions an hour, instead of measuring it")
    own.add_argument("--seeds", type=int, default=4, help="of each point (default 4)")
    own.add_argument("--sessions", type=int, default=150, help="of each run (default 150)")
    own.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    asked, _ = own.parse_known_args(argv)

    def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
        seeds = range(1, 2 if is_quick else asked.seeds + 1)
        sessions, jobs = 40 if is_quick else asked.sessions, asked.jobs
        knee = asked.knee or (KNEE_PER_H if is_quick else knee_per_h(sessions=sessions, jobs=jobs))
        verdict.tell("knee_per_h", knee)
        for world in ("as_usual",) if is_quick else tuple(PLACES):
            for relative in RELATIVE[:1] if is_quick else RELATIVE:
                at = f"{world}_{relative:g}"
                found = paired(world, OURS, relative * knee, seeds, sessions, jobs=jobs)
                judge(verdict, at, found, is_above=relative > 1)
                tell(f"{at}: mean {found.times('mean_s').mean:.3f} of FCFS's")
            for name, policy in () if is_quick else (("by_age", AGE), ("by_service", SERVICE)):
                found = paired(world, policy, RELATIVE[-1] * knee, seeds, sessions, jobs=jobs)
                at = f"{world}_{RELATIVE[-1]:g}_{name}"
                mean = found.times("mean_s")
                verdict.tell(f"{at}_mean", mean.mean)
                tell_rest(verdict, at, found, mean)
                tell(f"{at}: mean {mean.mean:.3f} of FCFS's")
        if not is_quick:
            found = paired("little_kv", OURS, RELATIVE[-1] * knee, seeds, sessions, jobs=jobs)
            verdict.tell("little_kv_mean", found.times("mean_s").mean)
            tell_rest(verdict, "little_kv", found, found.times("mean_s"))
        found = paired("bursts", OURS, 0.5 * knee, seeds, sessions, jobs=jobs)
        ttft = found.times("reactive_ttft_s")
        verdict.at_most("bursts_reactive_ttft", ttft.mean, 0.9)
        tell_bounds(verdict, "bursts_reactive_ttft", ttft)
        verdict.at_most("bursts_mean", found.times("mean_s").mean, 1.02)
        verdict.tell("bursts_background", found.times("background_s").mean)
        verdict.tell("bursts_reactive", found.times("reactive_s").mean)

    return judged(
        __file__,
        __doc__,
        measure,
        quick="one seed of 40 sessions, at 0.9 × a knee as measured before",
        own=own,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
