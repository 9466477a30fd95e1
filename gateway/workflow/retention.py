"""Retention: will a conversation's KV be used again, how soon, and how long is it worth holding?

Source: SAGA (arXiv 2605.00528), §4.1, Eq. 4–5 (P_reuse, overlap), §4.2, Alg. 1 (TTL), Eq. 6 (memory
pressure).

Symbols: P_reuse(s) → `RetentionDecision.reuse`; overlap(s, u) → `overlap`; n̂_obs →
`StepPrediction.grows`; H_t, p → `Pause.lengths`, `RetentionConfig.percentile`; TTL_max → `max_s`; m,
threshold_low, threshold_high → `memory_pressure`, `low`, `high`.

Deviations: m is clamped to 1: as printed, Eq. 6 exceeds it beyond threshold_high, and a TTL would go on
shrinking where the paper evicts. Latencies and n̂_obs are the step's, by its agent type's execution graph.
With enough evidence of the agent, a step with a likely end is not held: a guess may shorten a TTL and never
end it. State that waits for a person is held for at most `max_idle_s`. Release just before a reuse costs as
much as the whole hold, so the TTL has a floor, `least_s`. A trusted client's statements of a TTL and of a
return count.

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
    """The TTL is this quantile of the tool's latency."""
    least_s: Annotated[float, Meta(ge=0)] = 1.0
    """Least TTL above 0."""
    unknown_s: Annotated[float, Meta(ge=0)] = 6.0
    """TTL of an unknown step."""
    max_s: Annotated[float, Meta(gt=0, le=3600)] = 300.0
    """Most TTL while tools run."""
    max_idle_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    """Most TTL after an answer without calls."""
    ttl_shrink_from: Annotated[float, Meta(ge=0, le=1)] = 0.7
    """Share of the KV cache in use from which on TTLs shrink."""
    ttl_half_at: Annotated[float, Meta(ge=0, le=1)] = 0.9
    """Share at which TTLs are half as long."""
    end_probability: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Probability of an end from which on nothing is held, for known agents."""

    def __post_init__(self) -> None:
        if self.ttl_shrink_from >= self.ttl_half_at:
            raise ValueError("kv_retention: ttl_shrink_from must be below ttl_half_at")


class RetentionDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    reuse: float
    retain_s: float
    returns_in_s: float | None
    """The median; None without a next turn, or evidence."""


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
    """At the end of an answer. `stated`: by a trusted client."""
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
    """While a turn runs, until the hint at its pause. `goes_on`: probability of a next turn."""
    pressure = memory_pressure(kv_used, low=config.ttl_shrink_from, high=config.ttl_half_at)
    retain_s = ttl_s(config.unknown_s, pressure, least_s=config.least_s, most_s=config.max_idle_s)
    return RetentionDecision(reuse=goes_on, retain_s=_as_stated(config, stated, retain_s), returns_in_s=None)


def _as_stated(config: RetentionConfig, stated: Claims | None, retain_s: float) -> float:
    if stated is None or stated.retain_s is None:
        return retain_s
    return min(stated.retain_s, config.max_s)
