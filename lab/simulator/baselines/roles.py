"""Which replicas of a fleet compute prompts for others, as a policy says."""

from typing import Final

import msgspec

from gateway.domain.ids import ReplicaId
from lab.simulator.baselines.plan import Knob
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import FleetSpec

PREFILL_REPLICAS: Final = Knob(
    name="prefill",
    default="",
    sweep=("",),
    meaning="numbers of the replicas that compute prompts, as in `0.1`; by default as the fleet says",
)
"""For `with_roles`."""


def with_roles(fleet: FleetSpec, for_prompts: str) -> FleetSpec:
    """`for_prompts`: numbers of replicas, separated by dots. They compute prompts, and all others decode.
    Empty: as the fleet has it. Raises SimulatorError."""
    if not for_prompts:
        return fleet
    groups = [group for _, group in fleet.each()]
    try:
        chosen = {int(number) for number in for_prompts.split(".")}
        replicas = tuple(
            msgspec.structs.replace(group, count=1, role="prefill" if number in chosen else "decode")
            for number, group in enumerate(groups)
        )
        if max(chosen) >= len(groups) or min(chosen) < 0:
            raise ValueError(f"there are {len(groups)} replicas")
        return msgspec.convert(
            msgspec.to_builtins(msgspec.structs.replace(fleet, replicas=replicas)), FleetSpec
        )
    except (ValueError, msgspec.ValidationError) as error:
        raise SimulatorError(f"prefill={for_prompts}: {error}") from None


def without_network(fleet: FleetSpec) -> FleetSpec:
    """Nothing is handed over, and every replica does both."""
    replicas = tuple(
        msgspec.structs.replace(group, role="both", network_gbit_s=0.0) for group in fleet.replicas
    )
    return msgspec.structs.replace(fleet, replicas=replicas)


def roles_of(fleet: FleetSpec, role: str) -> frozenset[ReplicaId]:
    return frozenset(name for name, group in fleet.each() if group.role == role)
