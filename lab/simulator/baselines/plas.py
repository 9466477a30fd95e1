"""Autellix: the program that has been served least runs first.

Source: Autellix (arXiv 2502.13965), §4.2: program-level attained service (PLAS), its discretised queues and
its protection from starvation.

Symbols: attained service of a program → `_Program.service_s`; K → `levels`; quanta → `first_s` × 2^i;
waiting time W, service time T of a program → `_Program.waited_s`, `.service_s` since the last promotion; β
→ `beta`.

Deviations: service is the time that a completed call was in the engine's batch (it shares steps with
others); for a program with parallel calls that is their sum, where the paper's ATLAS takes the critical
path. vLLM compares priorities at arrival and when it preempts, so a call is not demoted while it runs, and
whether its program starves is asked when it arrives. `levels=0` is the continuous form, without quanta.

Invariants: a program starts in the first queue; more service never makes it more urgent, but for a promotion.
"""

import msgspec

from lab.simulator.baselines.by_order import PER_S
from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.engine.policy import EnginePolicy
from lab.simulator.engine.turn import EngineTurn


class _Program(msgspec.Struct):
    service_s: float = 0.0
    recent_s: float = 0.0
    """Service since the last promotion."""
    waited_s: float = 0.0
    """Since the last promotion, too."""


class Plas(EnginePolicy):
    def __init__(self, *, levels: int, first_s: float, beta: float) -> None:
        self._levels = levels
        self._first_s = first_s
        self._beta = beta
        self._programs: dict[str, _Program] = {}

    def priority(self, turn: EngineTurn, *, now: float) -> int:
        program = self._programs.setdefault(turn.session.id, _Program())
        if not self._levels:
            return int(program.service_s * PER_S)
        if program.recent_s and program.waited_s >= self._beta * program.recent_s:
            program.recent_s = program.waited_s = 0.0
            return 0
        level, quantum_s = 0, self._first_s
        while level < self._levels - 1 and program.service_s >= quantum_s:
            level, quantum_s = level + 1, quantum_s * 2
        return level

    def retain_until(self, turn: EngineTurn, *, now: float) -> float | None:
        """Nothing is retained; a call was completed."""
        if turn.is_last and turn.ref.thread == 0:
            self._programs.pop(turn.session.id, None)
            return None
        program = self._programs.get(turn.session.id)
        if program is not None and turn.began_s is not None:
            program.service_s += now - turn.began_s
            program.recent_s += now - turn.began_s
            program.waited_s += turn.began_s - turn.submitted_s
        return None


def _plas(plan: Plan, values: Values) -> Plan:
    def policy() -> Plas:
        return Plas(
            levels=int(values["levels"]), first_s=float(values["first_s"]), beta=float(values["beta"])
        )

    return plan.with_policy(policy, by_priority=True)


PLAS = Recipe(
    name="plas",
    summary="Autellix: least attained service by program (vLLM priority)",
    source="arXiv 2502.13965",
    apply=_plas,
    knobs=(
        Knob(name="levels", default=8, sweep=(0, 8), meaning="queues; 0: continuous"),
        Knob(
            name="first_s", default=2.0, sweep=(0.5, 2.0, 8.0), meaning="service after which queue 1 is left"
        ),
        Knob(
            name="beta",
            default=4.0,
            sweep=(4.0,),
            meaning="promoted when it waited so many times its service",
        ),
    ),
)
