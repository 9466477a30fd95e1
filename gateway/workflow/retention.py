"""Retention: will a conversation's KV be used again, how soon, and how long is it worth holding?

Source: SAGA (arXiv 2605.00528), §4.1, Eq. 4–5 (P_reuse, overlap), §4.2, Alg. 1 (TTL), Eq. 6 (memory
pressure).

Symbols: P_reuse(s) → `RetentionDecision.reuse`; overlap(s, u) → `overlap`; n̂_obs →
`StepPrediction.grows`; H_t, p → `ExpectedReturn.lengths`, `PERCENTILE`; TTL_max → `MAX_S`; m, threshold_low,
threshold_high → `memory_pressure`, `_SHRINK_FROM`, `_HALF_AT`.

Deviations: m is clamped to 1: as printed, Eq. 6 exceeds it beyond threshold_high, and a TTL would go on
shrinking where the paper evicts. Latencies and n̂_obs are the step's, by its agent type's execution graph.
With enough evidence of the agent, a step with a likely end is not held: a guess may shorten a TTL and never
end it. State that waits for a person is held for at most `_MAX_IDLE_S`. Release just before a reuse costs as
much as the whole hold, so the TTL has a floor, `_LEAST_S`. A trusted client's statements of a TTL and of a
return count.

Invariants: 0 ≤ `reuse` ≤ 1; 0 ≤ `retain_s` ≤ `MAX_S`; a finished conversation is held for 0 s.
"""

from typing import Final

import msgspec

from gateway.domain.request import Claims
from gateway.workflow.aeg.graphs import Tier
from gateway.workflow.conversations import Conversation, StepPrediction

# The TTL is this quantile of the tool's latency.
PERCENTILE: Final = 0.95
_LEAST_S: Final = 1.0
# TTL of an unknown step.
UNKNOWN_S: Final = 6.0
MAX_S: Final = 300.0
# After an answer without calls.
_MAX_IDLE_S: Final = 30.0
# Shares of the KV cache in use.
_SHRINK_FROM, _HALF_AT = 0.7, 0.9
_LIKELY_END: Final = 0.5


class RetentionDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    reuse: float
    retain_s: float
    returns_in_s: float | None
    """The median; None without a next turn, or evidence."""


def memory_pressure(used: float) -> float:
    return min(1.0, max(0.0, (used - _SHRINK_FROM) / (_HALF_AT - _SHRINK_FROM)))


def ttl_s(base_s: float, kv_used: float, *, least_s: float = _LEAST_S, most_s: float) -> float:
    return min(max(base_s, least_s) * (1.0 - 0.5 * memory_pressure(kv_used)), most_s)


def overlap(context_tokens: float, observation_tokens: float) -> float:
    if context_tokens <= 0:
        return 0.0
    return context_tokens / (context_tokens + observation_tokens)


def at_pause(
    thread: Conversation, behind: StepPrediction, *, kv_used: float, stated: Claims | None = None
) -> RetentionDecision:
    """At the end of an answer. `stated`: by a trusted client."""
    tier, ends, pause = behind.tier, behind.ends, behind.pause
    if stated is not None and stated.resumes is not None:
        tier, ends = Tier.STATED, 0.0 if stated.resumes else 1.0
    if tier is not Tier.UNKNOWN and ends >= _LIKELY_END:
        retain_s, returns_in_s = 0.0, None
    else:
        base_s = UNKNOWN_S if pause.lengths is None else pause.quantile_s(PERCENTILE) or 0.0
        retain_s = ttl_s(base_s, kv_used, most_s=MAX_S if behind.tools else _MAX_IDLE_S)
        returns_in_s = pause.quantile_s(0.5)
    reuse = (1.0 - ends) * overlap(thread.tokens, behind.grows)
    return RetentionDecision(reuse=reuse, retain_s=_as_stated(stated, retain_s), returns_in_s=returns_in_s)


def provisional(goes_on: float, *, kv_used: float, stated: Claims | None = None) -> RetentionDecision:
    """While a turn runs, until the hint at its pause. `goes_on`: probability of a next turn."""
    retain_s = _as_stated(stated, ttl_s(UNKNOWN_S, kv_used, most_s=_MAX_IDLE_S))
    return RetentionDecision(reuse=goes_on, retain_s=retain_s, returns_in_s=None)


def _as_stated(stated: Claims | None, retain_s: float) -> float:
    return retain_s if stated is None or stated.retain_s is None else min(stated.retain_s, MAX_S)
