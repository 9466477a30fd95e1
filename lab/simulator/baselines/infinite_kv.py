"""Infinite KV: nothing is ever evicted. The bound for everything that manages memory.

Source: none; a bound.

Deviations: not infinite but `times` as much, which a run of some hundred sessions does not fill.

Invariants: engines are as fast as before; only their memory grows.
"""

import msgspec

from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values


def _infinite(plan: Plan, values: Values) -> Plan:
    tokens = plan.kv_tokens(plan.fleet)
    by_group = {group: tokens[str(name)] for name, group in plan.fleet.each()}
    groups = tuple(
        msgspec.structs.replace(
            group, kv_blocks=int(values["times"]) * (by_group[group] // plan.options.block_size) + 1
        )
        for group in plan.fleet.replicas
    )
    return msgspec.structs.replace(plan, fleet=msgspec.structs.replace(plan.fleet, replicas=groups))


INFINITE_KV = Recipe(
    name="infinite-kv",
    summary="a KV cache that never fills",
    source="a bound",
    apply=_infinite,
    knobs=(Knob(name="times", default=20, sweep=(20,), meaning="as much KV as there is, so many times"),),
    is_clairvoyant=True,
)
