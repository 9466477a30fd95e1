"""Prefill and decode on two replicas: when is a prompt worth computing elsewhere? (X5)

Source: Agent.xpu (arXiv 2506.24045), §4.2-4.3: prefill and decode are apart, prefill is bound late to its
device; DistServe (OSDI 24) for engines that share no memory.

Symbols: NPU → a prefill replica; iGPU → a decode replica.

Theory of operation. A prefill beside decoding turns takes its own time and delays those. Elsewhere it delays
none, but waits for the prefills there, and its KV cache has to be transferred. The shorter one wins; short or
warm prompts stay.

Deviations: the paper's devices share one memory and one process, so every prompt goes to the NPU and the
transfer is free. Here both are servers; a leg costs a request, and a transfer its observed time.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.routing.placement import HOLDS_UP


class DisaggregationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For pools with a `transfer`."""

    threshold_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Prompts with at least so many uncached tokens go elsewhere; by default, those for which that is
    predicted to pay."""
    least_s: Annotated[float, Meta(ge=0)] = 0.05
    """Prefills that are predicted to take less stay."""
    max_time_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.8
    """Most predicted time elsewhere, as a share of the time at the decoding replica."""
    tokens_per_s: Annotated[float, Meta(gt=0)] = 50_000.0
    """Prior rate of a transfer."""
    patience_s: Annotated[float, Meta(gt=0)] = 10.0
    """A prefill leg ends unfinished after this time, and four times the prediction."""


class Work(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A prompt at one replica, as predicted."""

    first_token_s: float
    """Among other turns, with the price of that time."""
    prefill_s: float
    """Alone."""
    turns: int
    """Running there."""

    @property
    def cost_s(self) -> float:
        return self.first_token_s + HOLDS_UP * self.prefill_s * self.turns


def pays(
    config: DisaggregationConfig, *, new_tokens: float, here: Work, there: Work, transfer_s: float
) -> bool:
    """`new_tokens`: not cached `here`; `transfer_s`: of the cache from `there`."""
    if config.threshold_tokens is not None:
        return new_tokens >= config.threshold_tokens
    if here.prefill_s < config.least_s:
        return False
    return there.cost_s + transfer_s <= config.max_time_ratio * here.cost_s
