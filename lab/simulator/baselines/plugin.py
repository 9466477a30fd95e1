"""The engine plugin: combine it with `turnpike`, whose hints it follows.

Source: this project.

Deviations: none of the plugin's own: it is the code that is loaded live. The engines that carry it take no
stretches, so such a simulation takes several times as long.
"""

from typing import Any

from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values

_FEATURES = ("coordinator", "retention", "classes")


def _plugin(plan: Plan, values: Values) -> Plan:
    settings: dict[str, Any] = {name: False for name in _FEATURES if not values[name]}
    if values["connectors"]:
        settings["connectors"] = ["HandOver"]
    return plan.with_plugin(settings)


PLUGIN = Recipe(
    name="plugin",
    summary="the engines follow hints; combine it with `turnpike`",
    source="this project",
    apply=_plugin,
    knobs=(
        *(Knob(name=name, default=1, sweep=(1,), meaning="0: without this bias") for name in _FEATURES),
        Knob(
            name="connectors",
            default=0,
            sweep=(0,),
            meaning="1: all biases, though engines hand KV caches over; without it the order alone",
        ),
    ),
)
