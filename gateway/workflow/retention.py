"""Will a conversation's KV be used again, how soon, and how long is it worth holding?

Source: SAGA (arXiv 2605.00528), §4.1, Eq. 4–5 (P_reuse, overlap), §4.2, Alg. 1 (TTL), Eq. 6 (memory
pressure).

Symbols: P_reuse(s) → `RetentionDecision.reuse`; overlap(s, u) → `overlap`; n̂_obs →
`StepPrediction.grows`; H_t, p → `Pause.lengths`, `RetentionConfig.percentile`; TTL_max → `max_s`; m,
threshold_low, threshold_high → `memory_pressure`, `low`, `high`.

Deviations: m is clamped to 1: as printed, Eq. 6 exceeds it beyond threshold_high, and a TTL would go on
shrinking where the paper evicts. The latencies are those of the step, as its agent type's execution graph
has them, and n̂_obs is what it expects the next turn to add. A step after which the conversation is likelier
over than not is held for nothing, but not before enough was seen of its agent: a guess may shorten a TTL and
never end it; one that waits for a person, for at most `max_idle_s`. What is released a moment before it is
used again costs as much as all the time before, so the TTL has a floor, `least_s`. A client that is believed
may say how long to hold, and whether its conversation goes on; then that counts.

Invariants: 0 ≤ `reuse` ≤ 1; 0 ≤ `retain_s` ≤ `max_s`; a finished conversation is held for 0 s.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.domain.request import Claims
from gateway.workflow.aeg.graphs import Tier
from gateway.workflow.conversations import Conversation, StepPrediction


class RetentionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    percentile: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    """Of the tool's latency: hold state for so long."""
    least_s: Annotated[float, Meta(ge=0)] = 1.0
    """State is held at least so long, if at all."""
    unknown_s: Annotated[float, Meta(ge=0)] = 6.0
    """While nothing is known of a step."""
    max_s: Annotated[float, Meta(gt=0, le=3600)] = 300.0
    """State is held at most so long while tools run."""
    max_idle_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    """Behind an answer without calls."""
    ttl_shrink_from: Annotated[float, Meta(ge=0, le=1)] = 0.7
    """Share of the KV cache in use from which on TTLs shrink."""
    ttl_half_at: Annotated[float, Meta(ge=0, le=1)] = 0.9
    """And at which they are half as long."""
    end_probability: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Probability of the end from which on nothing is held; of agents that are known."""

    def __post_init__(self) -> None:
        if self.ttl_shrink_from >= self.ttl_half_at:
            raise ValueError("kv_retention: ttl_shrink_from must be below ttl_half_at")


class RetentionDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    reuse: float
    retain_s: float
    returns_in_s: float | None
    """When the next turn is expected: the median; None if none is, or nothing is known."""


def memory_pressure(used: float, *, low: float, high: float) -> float:
    return min(1.0, max(0.0, (used - low) / (high - low)))


def ttl_s(base_s: float, pressure: float, *, least_s: float, most_s: float) -> float:
    return min(max(base_s, least_s) * (1.0 - 0.5 * pressure), most_s)


def overlap(context_tokens: float, observation_tokens: float) -> float:
    if context_tokens <= 0:
        return 0.0
    return context_tokens / (context_tokens + observation_tokens)


def at_pause(
    config: RetentionConfig,
    thread: Conversation,
    behind: StepPrediction,
    *,
    kv_used: float,
    stated: Claims | None = None,
) -> RetentionDecision:
    """An answer has ended; its calls, if there are any, begin to run. `stated`: by a client that is
    believed."""
    tier, ends, pause = behind.tier, behind.ends, behind.pause
    if stated is not None and stated.resumes is not None:
        tier, ends = Tier.STATED, 0.0 if stated.resumes else 1.0
    if tier is not Tier.UNKNOWN and ends >= config.end_probability:
        retain_s, returns_in_s = 0.0, None
    else:
        base_s = config.unknown_s if pause.lengths is None else pause.quantile_s(config.percentile) or 0.0
        pressure = memory_pressure(kv_used, low=config.ttl_shrink_from, high=config.ttl_half_at)
        most_s = config.max_s if behind.tools else config.max_idle_s
        retain_s = ttl_s(base_s, pressure, least_s=config.least_s, most_s=most_s)
        returns_in_s = pause.quantile_s(0.5)
    return RetentionDecision(
        reuse=(1.0 - ends) * overlap(thread.tokens, behind.grows),
        retain_s=_as_stated(config, stated, retain_s),
        returns_in_s=returns_in_s,
    )


def provisional(
    config: RetentionConfig, goes_on: float, *, kv_used: float, stated: Claims | None = None
) -> RetentionDecision:
    """A turn is sent; nobody knows yet how its answer will end. Long enough for a word at the pause.

    `goes_on`: the probability that its conversation does, whatever the answer is.
    """
    pressure = memory_pressure(kv_used, low=config.ttl_shrink_from, high=config.ttl_half_at)
    retain_s = ttl_s(config.unknown_s, pressure, least_s=config.least_s, most_s=config.max_idle_s)
    return RetentionDecision(reuse=goes_on, retain_s=_as_stated(config, stated, retain_s), returns_in_s=None)


def _as_stated(config: RetentionConfig, stated: Claims | None, retain_s: float) -> float:
    if stated is None or stated.retain_s is None:
        return retain_s
    return min(stated.retain_s, config.max_s)
