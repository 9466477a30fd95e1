"""Turnpike itself, as it is configured by default: the brain of the live gateway.

Source: this project.

Symbols: —

Deviations: none: it is the same code, driven on a virtual clock.

Invariants: —
"""

import msgspec

from gateway.assembly import assemble
from gateway.simulator.baselines.plan import Knob, Plan, Recipe, Values
from gateway.simulator.brain import Brain
from gateway.simulator.fleet import FleetSpec
from gateway.simulator.run import stock_config


def _turnpike(plan: Plan, values: Values) -> Plan:
    def brain(fleet: FleetSpec) -> Brain:
        config = stock_config(fleet)
        core = msgspec.structs.replace(config.core, max_wait_s=float(values["wait_s"]))
        return assemble(msgspec.structs.replace(config, core=core), id_prefix="")

    return plan.with_brain(brain)


TURNPIKE = Recipe(
    name="turnpike",
    summary="this gateway's brain, with its default settings",
    source="this project",
    apply=_turnpike,
    knobs=(Knob(name="wait_s", default=50, sweep=(50, 3600), meaning="how long a turn may wait"),),
)
