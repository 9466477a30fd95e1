"""What a person writes for a policy: recipes, joined by `+`, each with its knobs.

    affinity+offload        session-cap:n=12+offload        plas:first_s=0.5:beta=2        session-cap:sweep

`sweep` stands for every combination of the values that the recipe's knobs declare; `n=8/12/16` for those
named.
"""

import itertools
from collections.abc import Iterator
from typing import Self

import msgspec

from lab.simulator.baselines.plan import Knob, Plan, Recipe, Value, Values
from lab.simulator.baselines.registry import RECIPES
from lab.simulator.engine.options import EngineOptions
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import FleetSpec

_ALL = "sweep"


class Chosen(msgspec.Struct, frozen=True):
    """A recipe by name, with all its knobs set."""

    recipe: str
    values: tuple[tuple[str, Value], ...]

    def label(self) -> str:
        """As a person would write it: what is as usual, and never swept, is left out."""
        usual = {knob.name: knob.default for knob in RECIPES[self.recipe].knobs if len(knob.sweep) == 1}
        said = [f":{name}={_short(value)}" for name, value in self.values if value != usual.get(name)]
        return self.recipe + "".join(said)


class Variant(msgspec.Struct, frozen=True):
    """One policy, with everything set."""

    chosen: tuple[Chosen, ...]

    @property
    def label(self) -> str:
        return "+".join(each.label() for each in self.chosen)

    @property
    def is_clairvoyant(self) -> bool:
        return any(RECIPES[each.recipe].is_clairvoyant for each in self.chosen)

    def plan(self, fleet: FleetSpec, options: EngineOptions | None = None) -> Plan:
        """Raises SimulatorError where the recipes cannot be combined."""
        plan = Plan.of(fleet, options)
        # Offloading first: others ask whether it is there.
        for each in sorted(self.chosen, key=lambda each: each.recipe != "offload"):
            values: Values = dict(each.values)
            plan = RECIPES[each.recipe].apply(plan, values)
        return plan


class PolicySpec(msgspec.Struct, frozen=True):
    """What was written, and all that it stands for."""

    text: str
    variants: tuple[Variant, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises SimulatorError that says what there is."""
        parts = [list(_parse_part(part)) for part in text.split("+")]
        return cls(text, tuple(Variant(chosen) for chosen in itertools.product(*parts)))


def parse_policies(text: str) -> list[PolicySpec]:
    """Several, separated by commas."""
    return [PolicySpec.parse(each.strip()) for each in text.split(",") if each.strip()]


def _parse_part(text: str) -> Iterator[Chosen]:
    name, *settings = text.split(":")
    recipe = RECIPES.get(name)
    if recipe is None:
        raise SimulatorError(f"there is no policy {name!r}; there are {', '.join(RECIPES)}")
    tried: dict[str, tuple[Value, ...]] = {knob.name: (knob.default,) for knob in recipe.knobs}
    if _ALL in settings:
        tried = {knob.name: knob.sweep for knob in recipe.knobs}
    for setting in settings:
        if setting == _ALL:
            continue
        key, equals, value = setting.partition("=")
        if not equals:
            raise SimulatorError(f"{name}: {setting!r} is neither KNOB=VALUE nor {_ALL!r}")
        knob = _knob(recipe, key)
        tried[key] = tuple(_value(recipe, knob, each) for each in value.split("/"))
    for values in itertools.product(*tried.values()):
        yield Chosen(name, tuple(zip(tried, values, strict=True)))


def _knob(recipe: Recipe, name: str) -> Knob:
    for knob in recipe.knobs:
        if knob.name == name:
            return knob
    there = ", ".join(knob.name for knob in recipe.knobs) or "none"
    raise SimulatorError(f"{recipe.name} has no knob {name!r}; it has {there}")


def _short(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value(recipe: Recipe, knob: Knob, text: str) -> Value:
    try:
        return type(knob.default)(text)
    except ValueError:
        raise SimulatorError(f"{recipe.name}: {knob.name}={text!r} is no number") from None
