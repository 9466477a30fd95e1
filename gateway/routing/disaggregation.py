"""Prefill and decode on two replicas: when is a prompt worth computing elsewhere? (X5)

Source: Agent.xpu (arXiv 2506.24045), §4.2-4.3: prefill and decode are apart, prefill is bound late to where
it runs; DistServe (OSDI 24) for engines that share no memory.

Symbols: NPU → a replica that computes prompts; iGPU → one that decodes.

Theory of operation. A prompt that is computed where others decode takes its own time and holds those up.
Computed elsewhere it holds nobody up, but it waits for the prompts that are computed there, and its KV cache
has to come over. The shorter one wins; a short or warm prompt stays.

Deviations: the paper's devices share one memory and one process: there, every prompt goes to the NPU and the
cache costs nothing to hand over. Here both are servers, a leg costs a request, and a transfer what it was
seen to take.

Invariants: pure.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.routing.predicted import HOLDS_UP


class DisaggregationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For pools that have a `transfer`."""

    threshold_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Prompts of which at least so many tokens have to be computed are computed elsewhere, all others where
    they are decoded; by default, those for which that is predicted to pay."""
    least_s: Annotated[float, Meta(ge=0)] = 0.05
    """What is predicted to take less where it is decoded stays there."""
    max_time_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.8
    """Elsewhere it must be predicted to take no more than this share of what it takes there."""
    tokens_per_s: Annotated[float, Meta(gt=0)] = 50_000.0
    """How fast a KV cache comes over, until that was seen."""
    patience_s: Annotated[float, Meta(gt=0)] = 10.0
    """A prefill leg that takes longer, and longer than four times what was predicted, is given up."""


class Work(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A prompt at one replica, as predicted."""

    first_token_s: float
    """Among those that are there; where a second has a price, with it."""
    prefill_s: float
    """Alone."""
    turns: int
    """That run there, and would be held up."""

    @property
    def cost_s(self) -> float:
        return self.first_token_s + HOLDS_UP * self.prefill_s * self.turns


def pays(
    config: DisaggregationConfig, *, new_tokens: float, here: Work, there: Work, transfer_s: float
) -> bool:
    """Whether a prompt is to be computed elsewhere. `new_tokens`: what `here` would have to compute of it;
    `transfer_s`: until its cache is `here`, once it was computed `there`."""
    if config.threshold_tokens is not None:
        return new_tokens >= config.threshold_tokens
    if here.prefill_s < config.least_s:
        return False
    return there.cost_s + transfer_s <= config.max_time_ratio * here.cost_s
