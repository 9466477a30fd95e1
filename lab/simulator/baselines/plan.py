"""A plan: everything that a simulation needs to be told, before a workload is played.

A recipe changes it. What two recipes both want to decide, they cannot both have; that is refused.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec

from gateway.config.profiles import load_profile
from gateway.cost.profile import Profile
from lab.simulator.baselines.router import Affinity, Placement, Router, Window
from lab.simulator.brain import Brain
from lab.simulator.engine.options import EngineOptions, SchedulingPolicy
from lab.simulator.engine.policy import EnginePolicy
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import FleetSpec
from lab.workload.trace.format import Session

Value = int | float | str
Values = Mapping[str, Value]


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can be set about a recipe."""

    name: str
    default: Value
    sweep: tuple[Value, ...]
    """What is tried when the best is asked for. A knob with one value is not swept."""
    meaning: str


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    summary: str
    source: str
    """Where it comes from: a paper's arXiv number, or `stock`."""
    apply: "Callable[[Plan, Values], Plan]"
    """A plan that follows the recipe, from one that does not yet."""
    knobs: tuple[Knob, ...] = ()
    is_clairvoyant: bool = False
    """It knows what no gateway could: a bound, not a competitor."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    fleet: FleetSpec
    host_memory_gb: tuple[float, ...]
    """What the fleet file offers each group of replicas for KV; used by whoever asks for offloading."""
    options: EngineOptions
    profile: Profile
    """Of the first replica."""
    brain: Callable[[FleetSpec], Brain] | None = None
    """None: a `Router` with what is below."""
    placement: Callable[[], Placement] | None = None
    window: Window | None = None
    rank: Callable[[str], float] | None = None
    """In which order sessions that wait enter, by name; None for that of their arrival."""
    foresee: Callable[[Session], None] | None = None
    """Told of every session before it arrives, if the policy is clairvoyant."""
    dispatches_early: bool = False
    """Clients start tools while the answer that calls them is decoded."""

    @classmethod
    def of(cls, fleet: FleetSpec, options: EngineOptions | None = None) -> Self:
        """With affinity, and without window, bias and offloading, whatever the fleet file says of that."""
        bare = tuple(msgspec.structs.replace(group, offload_gb=0.0) for group in fleet.replicas)
        return cls(
            fleet=msgspec.structs.replace(fleet, replicas=bare),
            host_memory_gb=tuple(group.offload_gb for group in fleet.replicas),
            options=options or EngineOptions(),
            profile=load_profile(fleet.replicas[0].profile),
        )

    def make_brain(self, fleet: FleetSpec) -> Brain:
        if self.brain is not None:
            return self.brain(fleet)
        placement = self.placement or Affinity
        return Router(self.kv_tokens(fleet), placement(), self.window, self.rank)

    def kv_tokens(self, fleet: FleetSpec) -> dict[str, int]:
        """By replica, as its engine will have them."""
        block_size = self.options.block_size
        tokens = {}
        for name, group in fleet.each():
            blocks = group.kv_blocks or load_profile(group.profile).kv_tokens // block_size
            tokens[str(name)] = (blocks - 1) * block_size  # vLLM keeps one for itself
        return tokens

    def with_brain(
        self, brain: Callable[[FleetSpec], Brain], foresee: Callable[[Session], None] | None = None
    ) -> Self:
        _refuse(self.brain or self.placement or self.window, "gateway")
        return msgspec.structs.replace(self, brain=brain, foresee=foresee)

    def with_placement(self, placement: Callable[[], Placement]) -> Self:
        _refuse(self.brain or self.placement or self.window, "gateway")
        return msgspec.structs.replace(self, placement=placement)

    def with_window(
        self,
        window: Window,
        foresee: Callable[[Session], None] | None = None,
        *,
        rank: Callable[[str], float] | None = None,
    ) -> Self:
        _refuse(self.brain or self.placement or self.window, "gateway")
        return msgspec.structs.replace(self, window=window, foresee=foresee, rank=rank)

    def with_policy(self, policy: Callable[[], EnginePolicy], *, by_priority: bool = False) -> Self:
        """`by_priority`: the engines run with vLLM's priority scheduling."""
        self._refuse_another_bias()
        order = SchedulingPolicy.PRIORITY if by_priority else self.options.scheduling_policy
        options = msgspec.structs.replace(self.options, policy=policy, scheduling_policy=order)
        return msgspec.structs.replace(self, options=options)

    def with_plugin(self, settings: Mapping[str, Any]) -> Self:
        self._refuse_another_bias()
        options = msgspec.structs.replace(self.options, plugin=settings)
        return msgspec.structs.replace(self, options=options)

    def _refuse_another_bias(self) -> None:
        _refuse(self.options.policy, "engine")
        _refuse(self.options.plugin, "engine")


def _refuse(decided: object, what: str) -> None:
    if decided is not None:
        raise SimulatorError(f"two policies that both decide about the {what} cannot be combined")
