"""Native CPU offload: blocks that leave the device's memory stay in the host's, and come back over PCIe.

Source: vLLM 0.32's own offloading connector (LRU), at the host's memory and bandwidth.

Deviations: as the simulated replica's (`engine/`).

Invariants: combined with `affinity` this is the second of the two *strong baselines*. It combines with every
other recipe, too.
"""

import msgspec

from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values

_USUAL_GB = 128.0


def _offload(plan: Plan, values: Values) -> Plan:
    asked = float(values["gb"])
    groups = tuple(
        msgspec.structs.replace(group, offload_gb=asked or stated or _USUAL_GB)
        for group, stated in zip(plan.fleet.replicas, plan.host_memory_gb, strict=True)
    )
    return msgspec.structs.replace(plan, fleet=msgspec.structs.replace(plan.fleet, replicas=groups))


OFFLOAD = Recipe(
    name="offload",
    summary="vLLM's native CPU offload; combine it with others",
    source="vLLM 0.32",
    apply=_offload,
    knobs=(
        Knob(
            name="gb",
            default=0.0,
            sweep=(0.0,),
            meaning="host memory of each replica; 0: as the fleet file has it, else 128",
        ),
    ),
)
