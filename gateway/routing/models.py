"""Which model runs a turn for a name of the operator's?

Source: ours; LiteLLM, vllm-router and llm-d have weighted names, by request.

Theory of operation. A name has targets with weights. A hash of session id and name draws a session's target,
so all turns of a run, sub-agents and side requests included, have the same one at every gateway, without
shared state. Fallbacks are drawn in the same way.

Invariants: a session draws one target of a name, as long as the name's targets stay the same; a target
without weight is never drawn; targets and fallbacks are not resolved again.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2s
from itertools import accumulate
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.ids import PoolId
from gateway.domain.model_choice import Target

_RECORDED: Final = Meta(extra={"recorded": True})
# In headers of responses.
ModelName = Annotated[str, Meta(pattern=r"^[!-~]{1,256}\Z"), _RECORDED]


class TargetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: ModelName
    """The replicas' name for it; it replaces the requested one."""
    pool: Annotated[str, _RECORDED] | None = None
    """By default the pool that serves it."""
    weight: Annotated[float, Meta(ge=0, le=1e9)] = 1.0
    """Relative share of new sessions. 0: none; sessions that have it keep it."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name for clients, and its targets."""

    name: ModelName
    """Listed at `/v1/models`. May be a model's own name."""
    targets: tuple[TargetConfig, ...] = ()
    """By default the model of that name."""
    fallbacks: tuple[ModelName, ...] = ()
    """Models, or other names of this table, in this order, for new runs while the target's replicas are down
    or overloaded."""
    fallback_after_s: Annotated[float, Meta(ge=0, le=3600)] | None = None
    """Wait after which a turn goes to a fallback with room; by default only instead of a refusal."""
    fallback_mid_run: bool = False
    """A run may continue with another model, instead of a refusal."""

    def __post_init__(self) -> None:
        if not self.targets and not self.fallbacks:
            raise ValueError(f"model {self.name} needs targets, or fallbacks")
        if self.targets and not sum(target.weight for target in self.targets):
            raise ValueError(f"model {self.name}: none of its targets has a weight")
        if self.name in self.fallbacks:
            raise ValueError(f"model {self.name} cannot fall back to itself")


class NamedModel:
    def __init__(self, config: ModelConfig) -> None:
        targets = config.targets or (TargetConfig(model=config.name),)
        self.name = config.name
        self.targets = [
            Target(each.model, PoolId(each.pool) if each.pool is not None else None) for each in targets
        ]
        self._weights = [each.weight for each in targets]
        self._until = list(accumulate(self._weights))
        self.fallbacks: tuple[NamedModel, ...] = ()
        self.fallback_after_s = config.fallback_after_s if config.fallbacks else None
        self.may_change_mid_run = config.fallback_mid_run

    def draw(self, session: str | None) -> Target:
        """Without a session the one with the greatest weight: a text's embeddings are always of one model."""
        if session is None:
            return self.targets[self._weights.index(max(self._weights))]
        digest = blake2s(f"{session} {self.name}".encode(), digest_size=6).digest()
        # Less than the last one, also as a float.
        at = int.from_bytes(digest, "big") / 2**48 * self._until[-1]
        return next(target for target, until in zip(self.targets, self._until, strict=True) if at < until)

    def options(self, session: str | None) -> list[Target]:
        """Distinct targets, in the order of trial."""
        return list(dict.fromkeys(each.draw(session) for each in (self, *self.fallbacks)))

    def all_targets(self) -> list[Target]:
        return [target for each in (self, *self.fallbacks) for target in each.targets]


def named_models(configs: Sequence[ModelConfig]) -> Mapping[str, NamedModel]:
    table = {config.name: NamedModel(config) for config in configs}
    for config in configs:
        table[config.name].fallbacks = tuple(
            table.get(name) or NamedModel(ModelConfig(name=name, targets=(TargetConfig(model=name),)))
            for name in config.fallbacks
        )
    return table
