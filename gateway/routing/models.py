"""Which model runs a turn that asks for a name of the operator's?

Source: ours; weighted names are what LiteLLM, vllm-router and llm-d offer, by request.

Theory of operation. A name leads to targets with weights. Which one it is for a session follows from a hash
of the session's id and the name, so all turns of a run get the same one, sub-agents and side requests
included, at whatever gateway, and nothing need be shared. Fallbacks are drawn in the same way.

Invariants: one session draws one target of a name, as long as the name's targets stay the same; a target with
no weight is drawn by nobody; targets and models that are fallen back to are not looked up again.
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
ModelName = Annotated[str, Meta(pattern=r"^[!-~]{1,256}\Z"), _RECORDED]
"""It stands in headers of responses."""


class TargetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: ModelName
    """The name by which its replicas know it; it is sent on instead of the one that was asked for."""
    pool: Annotated[str, _RECORDED] | None = None
    """Where it is asked for; by default the pool that serves it."""
    weight: Annotated[float, Meta(ge=0, le=1e9)] = 1.0
    """Its share of new sessions, relative to the others'. 0: none; sessions that have it keep it."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name that clients may ask for, and what it leads to."""

    name: ModelName
    """Listed at `/v1/models`. It may be the name of a model, too."""
    targets: tuple[TargetConfig, ...] = ()
    """By default the model of that name."""
    fallbacks: tuple[ModelName, ...] = ()
    """Models, or other names of this table, tried in this order by a run that has not begun, where no replica
    of its target is there, or they are overloaded."""
    fallback_after_s: Annotated[float, Meta(ge=0, le=3600)] | None = None
    """A turn that has waited for so long goes to a fallback that has room. By default only one that would be
    refused does."""
    fallback_mid_run: bool = False
    """A run that has begun on one model may go on with another, rather than be refused."""

    def __post_init__(self) -> None:
        if not self.targets and not self.fallbacks:
            raise ValueError(f"model {self.name} needs targets, or fallbacks")
        if self.targets and not sum(target.weight for target in self.targets):
            raise ValueError(f"model {self.name}: none of its targets has a weight")
        if self.name in self.fallbacks:
            raise ValueError(f"model {self.name} cannot fall back to itself")


class NamedModel:
    """One name, resolved."""

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
        """For what belongs to no session, the one with the greatest weight, so that embeddings of one text
        are always of one model."""
        if session is None:
            return self.targets[self._weights.index(max(self._weights))]
        digest = blake2s(f"{session} {self.name}".encode(), digest_size=6).digest()
        # Less than the last one, also as a float.
        at = int.from_bytes(digest, "big") / 2**48 * self._until[-1]
        return next(target for target, until in zip(self.targets, self._until, strict=True) if at < until)

    def options(self, session: str | None) -> list[Target]:
        """What its turns may run on, in the order in which that is tried; each once."""
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
