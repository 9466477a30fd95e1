"""Turnpike itself, as it is configured by default: the brain of the live gateway.

Source: this project.

Symbols: —

Deviations: none: it is the same code, driven on a virtual clock.

Invariants: —
"""

from gateway.simulator.baselines.plan import Plan, Recipe, Values
from gateway.simulator.brain import Brain
from gateway.simulator.fleet import FleetSpec
from gateway.simulator.run import stock_coordinator


def _brain(fleet: FleetSpec) -> Brain:
    return stock_coordinator(fleet)


def _turnpike(plan: Plan, values: Values) -> Plan:
    return plan.with_brain(_brain)


TURNPIKE = Recipe(
    name="turnpike",
    summary="this gateway's brain, with its default settings",
    source="this project",
    apply=_turnpike,
)
