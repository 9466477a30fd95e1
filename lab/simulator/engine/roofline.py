"""The roofline: how long an engine step takes, and turns and sessions that have a replica to themselves.

Source: Agent.xpu, Appendix B, Eq. 8: T = max(W / P_eff, Q / B_eff).

Symbols: W → FLOPs of a step; Q → bytes that it reads; P_eff → `Profile.flops_per_s`;
B_eff → `Profile.bytes_per_s`.

Deviations: the paper annotates kernels; here a step of the whole engine is one maximum, over its matrix
products, plus what is never hidden behind them: attention over the context (compute-bound in a prefill row,
memory-bound in a decoding one) and constant overheads, of the step and of each row.

Invariants: a step never takes less time for more work, and never less than the overhead.
"""

from collections.abc import Iterator

import msgspec

from gateway.cost.formula import context_product, weight_bytes_read
from gateway.cost.profile import Profile


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine step computes."""

    new_tokens: int
    """Of all rows: each chunk of a prefill, and one of each decoding row."""
    rows: int = 1
    prefill_context_products: float = 0.0
    """Σ over the prefill rows of new tokens × the mean context before each of them (`context_product`)."""
    decode_context_tokens: int = 0
    """Σ over the decoding rows of the context that they read."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One LLM call of a session."""

    new_tokens: int
    """Of the prompt, without what is cached."""
    cached_tokens: int = 0
    output_tokens: int = 1


def step_s(profile: Profile, batch: Batch) -> float:
    model = profile.model
    products_s = 2 * model.active_parameters * batch.new_tokens / profile.flops_per_s
    weights_s = weight_bytes_read(profile, batch.new_tokens) / profile.bytes_per_s
    attention_flops = model.attention_flops_per_context_token * batch.prefill_context_products
    kv_bytes = model.kv_bytes_per_token * batch.decode_context_tokens
    return (
        profile.step_overhead_s
        + profile.row_overhead_s * batch.rows
        + max(products_s, weights_s)
        + attention_flops / profile.flops_per_s
        + kv_bytes / profile.bytes_per_s
    )


def chunks(profile: Profile, new_tokens: int, cached_tokens: int = 0) -> Iterator[Batch]:
    for start in range(0, new_tokens, profile.chunk_tokens):
        size = min(profile.chunk_tokens, new_tokens - start)
        product = context_product(size, cached_tokens + start)
        yield Batch(new_tokens=size, prefill_context_products=product)


def prefill_s(profile: Profile, new_tokens: int, cached_tokens: int = 0) -> float:
    """Until the first token, alone. At least one token is always computed, or there is nothing to sample."""
    steps = chunks(profile, max(1, new_tokens), cached_tokens)
    return sum(step_s(profile, step) for step in steps)


def decode_s(profile: Profile, context_tokens: int, output_tokens: int) -> float:
    if output_tokens <= 0:
        return 0.0
    # Linear in the context, so all steps cost what the middle one does.
    first, last = (
        step_s(profile, Batch(new_tokens=1, decode_context_tokens=context_tokens + grown))
        for grown in (0, output_tokens - 1)
    )
    return output_tokens * (first + last) / 2


def isolated_turn_s(profile: Profile, turn: Turn) -> float:
    """The prefill samples the first output token; the others are decoded."""
    context = turn.cached_tokens + turn.new_tokens
    return prefill_s(profile, turn.new_tokens, turn.cached_tokens) + decode_s(
        profile, context, turn.output_tokens - 1
    )
