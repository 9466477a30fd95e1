"""Stock vLLM: first come, first served, with its prefix cache, behind round robin or behind affinity.

Source: vLLM 0.32, its defaults (chunked prefill, prefix caching, full-prompt reserve). Affinity is what
prime-rl's router calls `sticky_least_loaded`.

Invariants: nothing is set but where turns run. With affinity this is the first of the two *strong baselines*;
on one replica both are the same.
"""

from lab.simulator.baselines.plan import Plan, Recipe, Values
from lab.simulator.baselines.router import Affinity, RoundRobin


def _round_robin(plan: Plan, values: Values) -> Plan:
    return plan.with_placement(RoundRobin)


def _affinity(plan: Plan, values: Values) -> Plan:
    return plan.with_placement(Affinity)


STOCK = Recipe(
    name="stock",
    summary="FCFS + prefix cache, each turn on the next replica",
    source="vLLM 0.32",
    apply=_round_robin,
)
AFFINITY = Recipe(
    name="affinity",
    summary="FCFS + prefix cache, a session's turns on one replica",
    source="vLLM 0.32",
    apply=_affinity,
)
