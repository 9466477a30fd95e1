"""Policies that play the same sessions on a simulated fleet, and what is measured of each run.

Of goals (`FIRST_TOKEN_S`, `TOKEN_S`), as in DistServe (OSDI 24): a turn is in time if its first token comes
soon enough, and the others come quickly enough on average.
"""

import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec

from gateway.config.profiles import load_profile
from gateway.domain.ids import ReplicaId
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.driver import ClientConfig
from lab.simulator.engine.options import EngineOptions
from lab.simulator.experiment.draw import Arrivals, draw
from lab.simulator.fleet import FleetSpec
from lab.simulator.isolated import IsolatedTimes
from lab.simulator.results import Ignore, SessionOutcome, Totals, TurnOutcome
from lab.simulator.run import simulate
from lab.workload.trace.format import Session

Figures = dict[str, float]

FIRST_TOKEN_S = 4.0
TOKEN_S = 0.02
_RETRIES = 1_000_000
"""Of a refused turn: a session that gives up would make a run look shorter than it was."""


class Game(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    fleet: FleetSpec
    pool: Sequence[Session] = ()
    """To draw sessions from."""
    per_h: float = 0.0
    """Sessions."""
    count: int
    """Sessions of a run."""
    told: tuple[str, ...]
    """Figures that are printed meanwhile."""

    def sessions(self, seed: int) -> list[Session]:
        return draw(self.pool, arrivals=Arrivals.POISSON, per_h=self.per_h, count=self.count, seed=seed)


class Outcomes(Ignore):
    def __init__(self) -> None:
        self.turns: list[TurnOutcome] = []
        self.sessions: list[SessionOutcome] = []

    def turn_done(self, outcome: TurnOutcome) -> None:
        self.turns.append(outcome)

    def session_done(self, outcome: SessionOutcome) -> None:
        self.sessions.append(outcome)


def play_all(policy: str, game: Game, seeds: Sequence[int], *, jobs: int) -> Iterator[tuple[int, Figures]]:
    """Seeds and their figures, in their order, each as soon as those before it are over."""
    found = by_processes(play, [(policy, game, seed) for seed in seeds], jobs=jobs)
    return zip(seeds, found, strict=True)


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


def play(policy: str, game: Game, seed: int) -> Figures:
    found, totals = outcomes(policy, game.fleet, game.sessions(seed), seed)
    *_, (last, _) = game.fleet.each()
    return _figures(found, totals, last)


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


def _figures(sink: Outcomes, totals: Totals, last: ReplicaId) -> Figures:
    """`last`: the fleet's last replica."""
    took_s = [each.end_s - each.arrival_s for each in sink.sessions]
    return {
        "completion_s": statistics.fmean(took_s),
        "slowdown": statistics.fmean(
            took / each.isolated_s for took, each in zip(took_s, sink.sessions, strict=True)
        ),
        "ttft_s": statistics.fmean(turn.first_token_s - turn.arrival_s for turn in sink.turns),
        "token_s": statistics.fmean(map(_token_s, sink.turns)),
        "late": statistics.fmean(map(_is_late, sink.turns)),
        "on_last": statistics.fmean(turn.replica == last for turn in sink.turns),
        "legs": float(totals.prefill_legs),
        "carried_gb": totals.carried_bytes / 1e9,
    }


def _token_s(turn: TurnOutcome) -> float:
    """Of those behind the first, on average."""
    return (turn.end_s - turn.first_token_s) / max(1, turn.output_tokens - 1)


def _is_late(turn: TurnOutcome) -> bool:
    return turn.first_token_s - turn.arrival_s > FIRST_TOKEN_S or _token_s(turn) > TOKEN_S
