"""Turnpike itself: the brain of the live gateway.

Source: this project.

Deviations: none: it is the same code, driven on a virtual clock. With the defaults of every setting, but
for what is set here; with `+offload` it is told, as an operator would, how many tokens the host's memory
holds.
"""

import math
from typing import Final

import msgspec

from gateway.assembly import assemble
from gateway.config import Config
from gateway.core.coordinator import Coordinator
from gateway.domain.session_ids import numbered_ids
from lab.simulator.baselines.foresight import WithoutForesight
from lab.simulator.baselines.placements import PLACEMENTS
from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.roles import PREFILL_REPLICAS, with_roles, without_network
from lab.simulator.brain import Brain
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import FleetSpec
from lab.simulator.run import stock_config
from lab.simulator.several import SeveralGateways

_OURS: Final = "predicted"
_NONE: Final = "none"
_NEVER: Final = 1 << 40
"""Tokens: no prompt has as many."""
_PLACEMENTS: Final = (_OURS, *PLACEMENTS)


def _turnpike(plan: Plan, values: Values) -> Plan:
    admission = {
        "policy": "sessions" if values["admission"] == _NONE else values["admission"],
        "shadow": values["admission"] == _NONE,
        "session_cap": values["n"],
        "limit_by_tool_load": bool(values["tools"]),
        "packing": {"order": values["order"]},
    }

    fleet = with_roles(plan.fleet, str(values["prefill"]))
    plan = msgspec.structs.replace(plan, fleet=fleet if values["legs"] == "on" else without_network(fleet))

    where = str(values["placement"])
    if where != _OURS and where not in PLACEMENTS:
        raise SimulatorError(f"turnpike: there is no placement {where!r}; there are {', '.join(_PLACEMENTS)}")

    def brain(fleet: FleetSpec) -> Brain:
        config = stock_config(fleet)
        if values["profiles"] == "told":
            config = _with_profiles(config, fleet)
        tree = msgspec.to_builtins(config.admission) | admission
        try:
            checked = msgspec.convert(tree, type(config.admission))
        except msgspec.ValidationError as error:
            raise SimulatorError(f"turnpike: {error}") from None
        ahead = msgspec.structs.replace(config.prefill_ahead, enabled=values["ahead"] == "on")
        threshold = int(values["threshold"]) or None
        if values["legs"] != "on":
            threshold = _NEVER
        config = msgspec.structs.replace(
            config,
            admission=checked,
            prefill_ahead=ahead,
            disaggregation=msgspec.structs.replace(config.disaggregation, threshold_tokens=threshold),
        )

        count = int(values["gateways"])

        def gateway(prefix: str) -> Coordinator:
            placement = None if where == _OURS else PLACEMENTS[where]()
            ids = numbered_ids(prefix)
            return assemble(config, session_ids=ids, placement=placement)

        if count > 1:
            period_s = 0.1 if values["shares"] else math.inf
            return SeveralGateways(count, lambda number: gateway(f"g{number}-"), period_s=period_s)
        found = gateway("")
        return WithoutForesight(found) if values["foresight"] == "constant" else found

    brain(plan.fleet)  # says at once what is wrong
    return plan.with_brain(brain)


def _with_profiles(config: Config, fleet: FleetSpec) -> Config:
    """As an operator says what replicas are made of."""
    [pool] = config.pools
    replicas = tuple(
        msgspec.structs.replace(replica, profile=group.profile)
        for replica, (_, group) in zip(pool.replicas, fleet.each(), strict=True)
    )
    return msgspec.structs.replace(config, pools=(msgspec.structs.replace(pool, replicas=replicas),))


TURNPIKE = Recipe(
    name="turnpike",
    summary="this gateway's brain, with its default settings",
    source="this project",
    apply=_turnpike,
    knobs=(
        Knob(
            name="admission",
            default="sessions",
            sweep=("sessions",),
            meaning="`sessions`; to compare with: `session-cap`, `none`",
        ),
        Knob(name="tools", default=1, sweep=(1,), meaning="0: the window follows the engines alone"),
        Knob(
            name="order",
            default="smallest",
            sweep=("smallest",),
            meaning="of those that wait; to compare with: `arrival`",
        ),
        Knob(
            name="foresight",
            default="learned",
            sweep=("learned",),
            meaning="`constant`: engines are told of one P_reuse and TTL for all",
        ),
        Knob(
            name="placement",
            default=_OURS,
            sweep=(_OURS,),
            meaning="`predicted`; to compare with: " + ", ".join(f"`{name}`" for name in PLACEMENTS),
        ),
        Knob(
            name="ahead",
            default="off",
            sweep=("off",),
            meaning="`on`: the next prompt is computed while tools run, if its system prompt is foreseen",
        ),
        Knob(
            name="legs",
            default="on",
            sweep=("on",),
            meaning="`off`: every prompt is computed where it is decoded, though replicas could hand it over",
        ),
        PREFILL_REPLICAS,
        Knob(
            name="threshold",
            default=0,
            sweep=(0,),
            meaning="tokens to be computed, above which a prompt is computed elsewhere; 0: where it pays",
        ),
        Knob(
            name="profiles",
            default="learned",
            sweep=("learned",),
            meaning="`told`: the gateway knows from the start what each replica is made of",
        ),
        Knob(
            name="gateways", default=1, sweep=(1,), meaning="so many share the fleet, each with its sessions"
        ),
        Knob(name="shares", default=1, sweep=(1,), meaning="0: they know nothing of one another"),
        Knob(name="n", default=12, sweep=(12,), meaning="of `session-cap`, all replicas together"),
    ),
)
