"""Would admission and placement gain by signals that engines push, instead of those that are polled?

    python -m benchmarks.pushed [--quick] [--json] [--seeds N] [--world NAME ...] [--jobs N]

Simulated: vLLM's own scheduler, two engines, the brain as it is by default, sessions of some ten turns whose
tools take 4 s, and a step in load: half as many sessions as fill the KV cache, then at once twice as many
more (`burst`), or their arrivals triple (`triples`). The same sessions in each arm (paired seeds; means and
95 % intervals):

* `polled`: engines report every second, as `/metrics` is read. What the others are compared with.
* `pushed`: they report every 0.1 s, and each report may move the window.
* `brake_pushed`: beside what the brain forecasts, no new session enters while less than a tenth of some
  engine's KV blocks is free, or requests wait in it; pushed.
* `pushed_plugin`: as `pushed` where engines carry the plugin, which also tells placement what it holds of
  each session; compared with `polled_plugin`.
* `gauge`: the brake's rule alone, instead of forecasts; `gauge_pushed`: the same, pushed, compared with
  `gauge`. A gauge that is read late must show here.

Told are, as ratios, the mean completion and the tokens that engines computed; and what the cache was asked
for beyond what it holds: preemptions, and requests that waited in an engine with a full cache, times seconds.
"""

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any, Final

import msgspec

from benchmarks.ablation import Without, left_out
from benchmarks.command import judged
from benchmarks.harmless import ENGINES, Point, sessions
from benchmarks.verdict import Interval, Verdict
from gateway.admission import limits
from gateway.admission.limits import Bound, Limits
from gateway.admission.sessions import Member
from gateway.core import events as ev
from gateway.domain.decision import WaitReason
from lab.simulator import signals
from lab.simulator.baselines.plan import Plan
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.driver import ClientConfig
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.simulator.results import Ignore, ReplicaSample, SessionOutcome
from lab.simulator.run import simulate
from lab.workload.trace.format import Session

PUSHED_S: Final = 0.1
LOOK_S: Final = 0.1
FULL: Final = 0.9
"""Share of the KV cache from which on it counts as full."""
BEFORE, BURST, TRIPLE = 0.5, 2.0, 3.0
"""Of as many sessions as fit: so many are in before, so many come at once; or arrivals times so many."""
GAINS_NOTHING: Final = 0.99
"""Of the mean completion: by less, pushing is worth no second way of asking."""
_why_not = Limits.why_not


class World(msgspec.Struct, frozen=True):
    engine: str
    context: int
    step: str
    """`burst` or `triples`."""

    @property
    def name(self) -> str:
        return f"{self.engine}_{self.context}_{self.step}"


WORLDS: Final = tuple(
    World(engine, context, step)
    for engine, context in (("a100", 20_000), ("h200", 40_000))
    for step in ("burst", "triples")
)


class Found(msgspec.Struct, frozen=True):
    completion_s: float
    computed: float
    preemptions: float
    queued_full_s: float
    """Requests that waited in an engine whose cache was full, times seconds."""
    most_used: float


class _Seen(Ignore):
    def __init__(self) -> None:
        self.taken_s: list[float] = []
        self.queued_full_s = self.most_used = 0.0

    def session_done(self, outcome: SessionOutcome) -> None:
        self.taken_s.append(outcome.end_s - outcome.arrival_s)

    def sample(self, at_s: float, replicas: Sequence[ReplicaSample]) -> None:
        for each in replicas:
            self.most_used = max(self.most_used, each.kv_used)
            if each.kv_used > FULL:
                self.queued_full_s += each.waiting * LOOK_S


def braked(limits: Limits, member: Member, *, taking: int = 1) -> Bound | None:
    return _why_not(limits, member, taking=taking) or by_gauge(limits, member)


def by_gauge(limits: Limits, _: Member, *, taking: int = 1) -> Bound | None:
    if not limits._places.count:  # noqa: SLF001 - a rule that is only tried here
        return None
    for said in limits.gpu._signals.values():  # noqa: SLF001
        used = (said.kv_used or 0.0) + (said.kv_retained or 0.0)
        if used > FULL or said.waiting:
            return Bound(WaitReason.KV_FULL, used, FULL)
    return None


def report_with_sessions(reports: signals.Reports) -> None:
    for engine in reports._engines:  # noqa: SLF001
        size = reports._block_size  # noqa: SLF001
        reports._send(ev.EngineReported(engine.name, signals.signals_of(engine, block_size=size)))  # noqa: SLF001
        if engine.plugin is not None:
            told = engine.plugin._biases.snapshot()["sessions"]  # noqa: SLF001
            tokens = {name: each["resident"] * size for name, each in told.items() if each["resident"]}
            reports._send(ev.ResidencyTold(engine.name, tokens))  # noqa: SLF001


class Arm(msgspec.Struct, frozen=True):
    against: str | None
    changes: tuple[Without, ...]
    policy: str = "turnpike"


_PUSHED: Final = (
    Without(signals, "PERIOD_S", PUSHED_S),
    Without(limits, "_UPDATE_S", PUSHED_S),
)
_BRAKE: Final = Without(Limits, "why_not", braked)
_GAUGE: Final = Without(Limits, "why_not", by_gauge)
_TELLS: Final = Without(signals.Reports, "_report", report_with_sessions)
ARMS: Final = {
    "polled": Arm(None, ()),
    "pushed": Arm("polled", _PUSHED),
    "brake_pushed": Arm("polled", (*_PUSHED, _BRAKE)),
    "gauge": Arm("polled", (_GAUGE,)),
    "gauge_pushed": Arm("gauge", (*_PUSHED, _GAUGE)),
    "polled_plugin": Arm(None, (), "turnpike+plugin"),
    "pushed_plugin": Arm("polled_plugin", (*_PUSHED, _TELLS), "turnpike+plugin"),
}


GAUGES: Final = ("gauge", "gauge_pushed")
"""Tried at bursts alone: they take minutes."""


class Run(msgspec.Struct, frozen=True):
    world: World
    arm: str
    seed: int
    scale: float
    """Of how many sessions there are before a step and after it."""


def arriving(world: World, fleet: FleetSpec, seed: int, scale: float) -> list[Session]:
    engine = ENGINES[world.engine]
    point = Point(world.engine, 4.0, world.context, 1.0, "tools", False)
    fit = sum(Plan.of(fleet).kv_tokens(fleet).values()) / world.context
    lasts_s = 10 * (point.pause_s + engine.output_tokens * engine.token_s + 0.1)
    dice = random.Random(f"{world.name} {seed}")
    at_s, times = 0.0, []

    def poisson(count: int, gap_s: float) -> None:
        nonlocal at_s
        for _ in range(count):
            at_s += dice.expovariate(1 / gap_s)
            times.append(at_s)

    gap_s = lasts_s / (BEFORE * fit)
    poisson(max(10, round(2 * BEFORE * fit * scale)), gap_s)
    if world.step == "burst":
        times += sorted(at_s + dice.uniform(0.0, 1.0) for _ in range(max(10, round(BURST * fit * scale))))
    else:
        poisson(max(20, round(2 * TRIPLE * BEFORE * fit * scale)), gap_s / TRIPLE)
    there = sessions(point, len(times), engine.output_tokens)
    dice.shuffle(there)
    return [msgspec.structs.replace(each, arrival_s=at) for each, at in zip(there, times, strict=True)]


def play(run: Run) -> Found:
    arm, engine = ARMS[run.arm], ENGINES[run.world.engine]
    fleet = FleetSpec(replicas=(ReplicaGroup(profile=engine.profile, count=2),))
    plan = parse_policies(arm.policy)[0].variants[0].plan(fleet)
    seen = _Seen()
    with ExitStack() as changed:
        for each in arm.changes:
            changed.enter_context(left_out(each))
        totals = simulate(
            arriving(run.world, fleet, run.seed, run.scale),
            plan.fleet,
            plan.make_brain,
            options=plan.options,
            client=ClientConfig(max_retries=1_000_000, says_when_over=False),
            seed=run.seed,
            sink=seen,
            sample_every_s=LOOK_S,
        )
    return Found(
        completion_s=statistics.fmean(seen.taken_s),
        computed=totals.computed_tokens,
        preemptions=totals.preemptions,
        queued_full_s=seen.queued_full_s,
        most_used=seen.most_used,
    )


def figures_of(pairs: Sequence[tuple[Found, Found]]) -> dict[str, Interval]:
    """Of an arm, and of what it is compared with, seed by seed."""
    return {
        "mean": Interval.of([ours.completion_s / theirs.completion_s for ours, theirs in pairs]),
        "computed": Interval.of([ours.computed / theirs.computed for ours, theirs in pairs]),
    }


def tell(verdict: Verdict, at: str, pairs: Sequence[tuple[Found, Found]]) -> str:
    found = figures_of(pairs)
    for name, ratio in found.items():
        verdict.tell(f"{at}_{name}", ratio.mean)
        if math.isfinite(ratio.low):
            verdict.tell(f"{at}_{name}_low", ratio.low)
            verdict.tell(f"{at}_{name}_high", ratio.high)
    for name in ("preemptions", "queued_full_s", "most_used"):
        for whose, which in (("", 0), ("_against", 1)):
            mean = statistics.fmean(getattr(pair[which], name) for pair in pairs)
            verdict.tell(f"{at}_{name}{whose}", mean)
    said = "; ".join(f"{name} {r.mean:.3f} ({r.low:.3f} to {r.high:.3f})" for name, r in found.items())
    queued = [statistics.fmean(pair[which].queued_full_s for pair in pairs) for which in (0, 1)]
    lost = [sum(pair[which].preemptions for pair in pairs) for which in (0, 1)]
    return (
        f"{at}: {said}; queued at a full cache {queued[0]:.1f} against {queued[1]:.1f} s; preemptions {lost}"
    )


def judge(verdict: Verdict, found: dict[Run, Found], say: Callable[[str], None]) -> None:
    everywhere: dict[str, list[tuple[Found, Found]]] = {}
    for world in dict.fromkeys(run.world for run in found):
        for name, arm in ARMS.items():
            runs = [run for run in found if run.world == world and run.arm == name]
            if arm.against is None or not runs:
                continue
            pairs = [(found[run], found[msgspec.structs.replace(run, arm=arm.against)]) for run in runs]
            everywhere.setdefault(name, []).extend(pairs)
            say(tell(verdict, f"{world.name}_{name}", pairs))
    for name, pairs in everywhere.items():
        mean = figures_of(pairs)["mean"]
        say(f"{name}: mean {mean.mean:.3f} ({mean.low:.3f} to {mean.high:.3f}) over all worlds and seeds")
        if name.startswith("pushed"):
            verdict.at_least(f"{name}_mean", mean.mean, GAINS_NOTHING)
        else:
            verdict.tell(f"{name}_mean", mean.mean)
        verdict.tell(f"{name}_mean_low", mean.low)
        verdict.tell(f"{name}_mean_high", mean.high)


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--seeds", type=int, default=6, help="of each world (default 6)")
    own.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    own.add_argument("--world", nargs="+", help=f"of {', '.join(each.name for each in WORLDS)} (default all)")
    own.add_argument("--arm", nargs="+", help=f"of {', '.join(ARMS)} (default all)")
    asked, _ = own.parse_known_args(argv)

    def measure(is_quick: bool, verdict: Verdict, say: Any) -> None:
        worlds = [each for each in WORLDS if not asked.world or each.name in asked.world]
        arms = [each for each in ARMS if not asked.arm or each in asked.arm]
        seeds, scale = range(1, asked.seeds + 1), 1.0
        if is_quick:
            worlds, arms, seeds, scale = [WORLDS[2]], ["polled", "pushed"], range(1, 3), 0.3
        runs = [
            Run(world, arm, seed, scale)
            for world in worlds
            for seed in seeds
            for arm in arms
            if arm not in GAUGES or world.step == "burst"
        ]
        with ProcessPoolExecutor(asked.jobs) as pool:
            judge(verdict, dict(zip(runs, pool.map(play, runs), strict=True)), say)

    quick = "one world, two seeds, fewer sessions, polled and pushed alone"
    return judged(__file__, __doc__, measure, quick=quick, own=own, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
