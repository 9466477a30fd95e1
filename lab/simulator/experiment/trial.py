"""One run: a policy, a load, a seed."""

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec

from lab.simulator.baselines.plan import Plan
from lab.simulator.baselines.spec import Variant
from lab.simulator.driver import ClientConfig
from lab.simulator.engine.options import EngineOptions
from lab.simulator.experiment.again import twice
from lab.simulator.experiment.draw import Arrivals, draw
from lab.simulator.fleet import FleetSpec
from lab.simulator.isolated import IsolatedTimes
from lab.simulator.measures.figures import RunFigures, run_figures
from lab.simulator.measures.run_measures import RunMeasures
from lab.simulator.measures.shared import reusable_tokens
from lab.simulator.measures.waterfall import Waterfall
from lab.simulator.run import simulate
from lab.workload.trace.format import Session

_LOOKS = 200
"""At the fleet, while sessions arrive; as often afterwards."""


class Trial(msgspec.Struct, frozen=True):
    variant: Variant
    per_h: float | None
    """Sessions; None for the file's own pace."""
    seed: int


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What a run plays."""

    sessions: Sequence[Session]
    """By arrival."""
    fleet: FleetSpec
    measured: frozenset[str] | None = None
    """Ids of the sessions that figures are of; None for all."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all trials of an experiment."""

    workload: Sequence[Session]
    fleet: FleetSpec
    options: EngineOptions = EngineOptions()
    arrivals: Arrivals = Arrivals.POISSON
    sessions: int = 120
    """Of each run."""
    max_retries: int = 1_000_000
    """Of a refused turn. Sessions that were given up would make a run look shorter than it was."""
    says_when_over: bool = True
    """Clients tell the gateway that a session is over; most agents do not."""
    comes_twice: bool = False
    """The same sessions came once before, so that the gateway has learned; figures are of the second time."""
    stage: "Callable[[Setting, Trial], Staged] | None" = None
    """Sessions and fleet of each trial, where they are more than a draw from the workload."""
    keeps_slowdowns: bool = False
    """Figures name every session's, by tenant."""
    shown: int = 8
    """Sessions kept in full, for the waterfall."""
    shown_ids: frozenset[str] = frozenset()
    """Those to show, if they are named."""


class Trials:
    """Runs trials of one setting. What sessions take alone is worked out once."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        bare = Plan.of(setting.fleet, setting.options)
        first = next(iter(bare.kv_tokens(setting.fleet).values()))
        self._isolated = IsolatedTimes(
            bare.profile,
            kv_blocks=first // setting.options.block_size + 1,
            block_size=setting.options.block_size,
            max_model_len=setting.options.max_model_len,
        )

    def run(self, trial: Trial) -> RunFigures:
        setting = self._setting
        staged = (setting.stage or usual)(setting, trial)
        sessions = [each for each in staged.sessions if staged.measured is None or each.id in staged.measured]
        plan = trial.variant.plan(staged.fleet, setting.options)
        measures = RunMeasures(
            sessions=len(sessions),
            waterfall=Waterfall(setting.shown_ids or _some(sessions, setting.shown, trial.seed)),
            measured=staged.measured,
            keeps_slowdowns=setting.keeps_slowdowns,
        )
        totals = simulate(
            _foreseen(staged.sessions, plan),
            plan.fleet,
            plan.make_brain,
            options=plan.options,
            client=ClientConfig(
                max_retries=setting.max_retries,
                says_when_over=setting.says_when_over,
                dispatches_early=plan.dispatches_early,
            ),
            seed=trial.seed,
            sink=measures,
            sample_every_s=max(1.0, sessions[-1].arrival_s / _LOOKS),
            isolated=self._isolated,
        )
        return run_figures(
            measures,
            totals,
            reusable_tokens=sum(reusable_tokens(each, plan.options.block_size) for each in sessions),
            replicas=len(plan.fleet.each()),
        )


def usual(setting: Setting, trial: Trial) -> Staged:
    """As many sessions as the setting says, drawn by the trial's seed."""
    sessions = draw(
        setting.workload,
        arrivals=setting.arrivals,
        per_h=trial.per_h,
        count=setting.sessions,
        seed=trial.seed,
    )
    if not setting.comes_twice:
        return Staged(sessions=sessions, fleet=setting.fleet)
    measured = frozenset(each.id for each in sessions)
    return Staged(sessions=twice(sessions), fleet=setting.fleet, measured=measured)


def _some(sessions: Sequence[Session], count: int, seed: int) -> frozenset[str]:
    """The same for every policy and load."""
    dice = random.Random(f"shown {seed}")  # noqa: S311 - no secret
    return frozenset(dice.sample([session.id for session in sessions], min(count, len(sessions))))


def _foreseen(sessions: Sequence[Session], plan: Plan) -> Iterator[Session]:
    for session in sessions:
        if plan.foresee is not None:
            plan.foresee(session)
        yield session
