"""Probes on tool hosts: the gateway is told how busy they are. Combine it with `turnpike`.

Source: this project.

Deviations: none: the probe is the simulated host's (`hosts.py`).
"""

import msgspec

from lab.simulator.baselines.plan import Plan, Recipe, Values


def _probe(plan: Plan, values: Values) -> Plan:
    hosts = tuple(msgspec.structs.replace(group, has_probe=True) for group in plan.fleet.tool_hosts)
    return msgspec.structs.replace(plan, fleet=msgspec.structs.replace(plan.fleet, tool_hosts=hosts))


PROBE = Recipe(
    name="probe",
    summary="tool hosts tell the gateway how busy they are; combine it with `turnpike`",
    source="this project",
    apply=_probe,
)
