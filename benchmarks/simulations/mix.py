"""Agent.xpu's mix: requests that somebody waits for beside background work, on one small device or a pair.

Source: Agent.xpu (arXiv 2506.24045) §6.1: requests of three reactive and three background data sets in
equal parts, two independent Poisson processes, fifteen minutes. The paper shows lengths in a picture
(Fig. 7): those here are assumed, of the size that the data sets are described with.
"""

import itertools
import multiprocessing
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final, Literal, Protocol

import msgspec

from benchmarks.verdict import percentile
from gateway.config.profiles import load_profile
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.driver import ClientConfig
from lab.simulator.engine.options import EngineOptions
from lab.simulator.fleet import Change, FleetSpec, ReplicaGroup
from lab.simulator.isolated import IsolatedTimes
from lab.simulator.results import Ignore, SessionOutcome, Totals, TurnOutcome
from lab.simulator.run import simulate
from lab.workload.trace.format import ServiceClass, Session, Thread, Turn
from lab.workload.trace.spread import Spread

TRACE_S: Final = 900.0
NOISE: Final = 0.02
BLOCK: Final = 16
_SHARED_MEMORY_GBIT_S: Final = 1e5
"""Of a pair that shares its memory: nothing is copied."""

Figures = dict[str, float]
_RETRIES: Final = 1_000_000
"""Of a refused turn: a session that gives up would make a run look shorter than it was."""

Lengths = tuple[Spread, Spread]
"""Tokens of a prompt and of its answer."""


def _lengths(prompt: float, sigma: float, most: int, answer: float, answer_sigma: float) -> Lengths:
    return (
        Spread(median=prompt, sigma=sigma, least=5, most=most),
        Spread(median=answer, sigma=answer_sigma, least=5, most=1_000),
    )


BACKGROUND: Final = {
    "ProactiveBench": _lengths(700, 0.6, 3_000, 90, 0.5),
    "SAMSum": _lengths(140, 0.6, 800, 24, 0.4),
    "CNN/DailyMail": _lengths(900, 0.45, 2_800, 70, 0.35),
}
REACTIVE: Final = {
    "LMSYS-Chat-1M": _lengths(40, 1.2, 2_000, 160, 0.8),
    "MTRAG": _lengths(1_500, 0.5, 6_000, 110, 0.6),
    "Berkeley Function Call Leaderboard": _lengths(400, 0.6, 2_500, 45, 0.5),
}


Make = Callable[[Random], Session]


def requests(lengths: dict[str, Lengths]) -> Make:
    """Of these, in equal parts. None shares anything with another."""
    names = sorted(lengths)

    def make(dice: Random) -> Session:
        name = dice.choice(names)
        prompt, answer = (spread.count(dice) for spread in lengths[name])
        turn = Turn(input_tokens=prompt, output_tokens=answer)
        return Session(id="", agent_type=name, threads=(Thread(turns=(turn,)),))

    return make


def arrivals(
    reactive: Make, background: Make, per_minute: tuple[float, float], trace_s: float, seed: int
) -> list[Session]:
    """Two independent Poisson processes, by arrival."""
    made = []
    for kind, make, rate in zip(ServiceClass, (reactive, background), per_minute, strict=True):
        dice, now, number = Random(f"{kind.value} {seed}"), 0.0, itertools.count()
        while (now := now + dice.expovariate(rate / 60)) < trace_s:
            id_ = f"{kind.value}-{next(number)}"
            made.append(msgspec.structs.replace(make(dice), id=id_, arrival_s=now, service_class=kind))
    return sorted(made, key=lambda session: session.arrival_s)


class Played(Protocol):
    """A fleet, and what is asked of it."""

    @property
    def name(self) -> str: ...

    @property
    def trace_s(self) -> float: ...

    def sessions(self, seed: int) -> list[Session]: ...

    def fleet(self, *, is_pair: bool) -> FleetSpec: ...


class Ground(msgspec.Struct, frozen=True):
    """A model and the arrivals, in requests a minute."""

    model: Literal["3b", "8b"]
    reactive: float
    background: float
    trace_s: float = TRACE_S

    def sessions(self, seed: int) -> list[Session]:
        rates = (self.reactive, self.background)
        return arrivals(requests(REACTIVE), requests(BACKGROUND), rates, self.trace_s, seed)

    @property
    def name(self) -> str:
        return f"{self.model}_{self.reactive:g}_{self.background:g}"

    def fleet(self, *, is_pair: bool) -> FleetSpec:
        """The device that decodes; of a pair the second one computes prompts alone."""
        profile = f"benchmarks/simulations/soc-{self.model}.toml"
        if not is_pair:
            return FleetSpec(replicas=(ReplicaGroup(profile=profile),), noise=NOISE)
        groups = tuple(
            ReplicaGroup(profile=profile, role=role, network_gbit_s=_SHARED_MEMORY_GBIT_S)
            for role in ("decode", "prefill")
        )
        return FleetSpec(replicas=groups, noise=NOISE, transfer_latency_s=0.0)


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """A fast device and two slow ones, and the paper's requests while little is known of them."""

    name: str
    joins: str | None = None
    """A replica that comes after a third of the time."""
    trace_s: float = 150.0
    reactive: float = 15
    background: float = 30

    def sessions(self, seed: int) -> list[Session]:
        rates = (self.reactive, self.background)
        return arrivals(requests(REACTIVE), requests(BACKGROUND), rates, self.trace_s, seed)

    def fleet(self, *, is_pair: bool) -> FleetSpec:
        fast, slow = (f"benchmarks/simulations/{name}-8b.toml" for name in ("fast", "soc"))
        changes = (Change(at_s=self.trace_s / 3, joins=self.joins),) if self.joins else ()
        replicas = (ReplicaGroup(profile=fast), ReplicaGroup(profile=slow, count=2))
        return FleetSpec(replicas=replicas, noise=NOISE, changes=changes)


UNSEEN: Final = (
    Devices(name="starts"),
    Devices(name="slow_joins", joins="sim-2"),
    Devices(name="fast_joins", joins="sim-0"),
)


class Arm(msgspec.Struct, frozen=True):
    """Who schedules, and on what."""

    policy: str
    is_pair: bool = False
    places: int = 256
    """Requests that an engine runs at a time."""


class Outcomes(Ignore):
    def __init__(self) -> None:
        self.turns: list[TurnOutcome] = []
        self.sessions: list[SessionOutcome] = []

    def turn_done(self, outcome: TurnOutcome) -> None:
        self.turns.append(outcome)

    def session_done(self, outcome: SessionOutcome) -> None:
        self.sessions.append(outcome)


def by_processes(
    play: Callable[..., Figures], tasks: Sequence[tuple[object, ...]], *, jobs: int
) -> Iterator[Figures]:
    """Of each task, in their order, each as soon as those before it are over."""
    import lab.simulator.engine.replica  # noqa: F401, PLC0415 - takes seconds; forked processes inherit it

    if jobs == 1 or len(tasks) <= 1:
        yield from (play(*task) for task in tasks)
        return
    with multiprocessing.get_context("fork").Pool(min(jobs, len(tasks))) as pool:
        yield from pool.imap(_call, [(play, task) for task in tasks])


def _call(job: tuple[Callable[..., Figures], tuple[object, ...]]) -> Figures:
    play, task = job
    return play(*task)


def outcomes(
    policy: str, fleet: FleetSpec, sessions: Sequence[Session], seed: int, asked: EngineOptions | None = None
) -> tuple[Outcomes, Totals]:
    """`asked`: of the engines; the defaults, unless stated."""
    plan, found = parse_policies(policy)[0].variants[0].plan(fleet, asked), Outcomes()
    first, options = load_profile(fleet.replicas[0].profile), plan.options
    totals = simulate(
        sessions,
        plan.fleet,
        plan.make_brain,
        options=options,
        client=ClientConfig(max_retries=_RETRIES),
        seed=seed,
        sink=found,
        isolated=IsolatedTimes(
            first,
            kv_blocks=first.kv_tokens // options.block_size,
            block_size=options.block_size,
            max_model_len=options.max_model_len,
        ),
    )
    return found, totals


def _took_s(outcome: SessionOutcome) -> float:
    return outcome.end_s - outcome.arrival_s


def play(arm: Arm, ground: Played, seed: int) -> Figures:
    """Means, in seconds from a request to its answer's end. `per_token`: the paper's normalised latency, over
    the tokens of prompt and answer. `reactive_alone_s`: of requests that have the device to themselves.
    `background_tokens_per_s`: of the prompts and answers of requests that ended within the trace."""
    fleet = ground.fleet(is_pair=arm.is_pair)
    asked = EngineOptions(max_num_seqs=arm.places, block_size=BLOCK)
    found, totals = outcomes(arm.policy, fleet, ground.sessions(seed), seed, asked)
    tokens: Counter[str] = Counter()
    for turn in found.turns:
        tokens[turn.session] += turn.prompt_tokens + turn.output_tokens
    reactive, background = (
        [each for each in found.sessions if each.service_class is kind]
        for kind in (ServiceClass.REACTIVE, ServiceClass.PROACTIVE)
    )
    took_s = [_took_s(each) for each in reactive]
    in_time = [tokens[each.id] for each in background if each.end_s <= ground.trace_s]
    return {
        "reactive_s": statistics.fmean(took_s),
        "reactive_p90_s": percentile(took_s, 90),
        "reactive_p99_s": percentile(took_s, 99),
        "reactive_per_token_s": statistics.fmean(_took_s(each) / tokens[each.id] for each in reactive),
        "reactive_alone_s": statistics.fmean(each.isolated_s for each in reactive),
        "background_s": statistics.fmean(map(_took_s, background)),
        "background_per_token_s": statistics.fmean(_took_s(each) / tokens[each.id] for each in background),
        "background_tokens_per_s": sum(in_time) / ground.trace_s,
        "busy": totals.busy_s / totals.end_s,
        "legs": float(totals.prefill_legs),
    }
