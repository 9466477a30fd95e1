"""Earliest deadline first, by somebody who knows what sessions take: a bound for keeping promises.

Source: Liu and Layland (1973), for one processor; SAGA compares with it.

Deviations: the deadline is what was set, else `alpha` times what the session takes alone, which no gateway
knows. Sessions enter in the order of their deadlines while at most `n` are on a replica, and the engines run
turns in that order (vLLM priority). Nothing is stopped for a session whose deadline is earlier.

Invariants: of two sessions that wait, the one whose deadline is earlier enters first.
"""

from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.session_cap import SessionCap
from lab.simulator.engine.policy import EnginePolicy
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.isolated import IsolatedTimes
from lab.workload.trace.format import Session

_PER_S = 1000


class Deadlines:
    """Of every session that was foreseen; they are kept as long as the plan is."""

    def __init__(self, isolated: IsolatedTimes, alpha: float) -> None:
        self._isolated = isolated
        self._alpha = alpha
        self._by_session: dict[str, float] = {}

    def foresee(self, session: Session) -> None:
        allowed_s = session.deadline_s
        if allowed_s is None:
            allowed_s = self._alpha * self._isolated.of(session)
        self._by_session[session.id] = session.arrival_s + allowed_s

    def of(self, session: str) -> float:
        return self._by_session[session]


class EarliestDeadline(EnginePolicy):
    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines

    def priority(self, turn: EngineTurn, *, now: float) -> int:
        return int(self._deadlines.of(turn.session.id) * _PER_S)


def _edf(plan: Plan, values: Values) -> Plan:
    options = plan.options
    kv_tokens = min(plan.kv_tokens(plan.fleet).values())
    isolated = IsolatedTimes(
        plan.profile,
        kv_blocks=kv_tokens // options.block_size + 1,
        block_size=options.block_size,
        max_model_len=options.max_model_len,
    )
    deadlines = Deadlines(isolated, float(values["alpha"]))
    ordered = plan.with_window(SessionCap(int(values["n"])), deadlines.foresee, rank=deadlines.of)
    return ordered.with_policy(lambda: EarliestDeadline(deadlines), by_priority=True)


EDF = Recipe(
    name="edf",
    summary="at most n sessions on a replica; sessions enter and run by their deadlines",
    source="Liu and Layland 1973",
    apply=_edf,
    knobs=(
        Knob(name="n", default=12, sweep=(6, 8, 10, 12, 16, 24), meaning="sessions on a replica"),
        Knob(name="alpha", default=1.5, sweep=(1.5,), meaning="of the time alone, where none is set"),
    ),
    is_clairvoyant=True,
)
