"""The estimator's features and coefficients, multiplied out: each prediction is then a few sums.

Invariant: the result is Σ coefficient · feature of the estimator, but for rounding, and at least `LEAST_S`.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.cost.profile import Profile

if TYPE_CHECKING:
    from gateway.cost.estimator import Load

LEAST_S: Final = 1e-6
# Per prompt token, cached or not: parsing, template, tokenizer, hashes of blocks.
READING_S: Final = 1e-6
_ROWS: Final = 256


def context_product(new_tokens: float, cached_tokens: float) -> float:
    """Pairs of attention: token i of a chunk sees the cached tokens and i − ½ of its own."""
    return new_tokens * (cached_tokens + new_tokens / 2)


def weight_bytes_read(profile: Profile, tokens: float) -> float:
    model = profile.model
    if model.experts == 0:
        return model.dense_weight_bytes
    untouched: float = (1 - model.experts_per_token / model.experts) ** tokens
    return model.dense_weight_bytes + model.expert_weight_bytes * (1 - untouched)


class Formula:
    def __init__(self, profile: Profile, first_token: Sequence[float], token: Sequence[float]) -> None:
        launch, products, tokens, attention, queued, under_way, shared, reading, queue_reading = first_token
        model = profile.model
        flops_per_s, bytes_per_s = profile.flops_per_s, profile.bytes_per_s
        token_s = 2 * model.active_parameters / flops_per_s
        product_s = model.attention_flops_per_context_token / flops_per_s
        read_s = model.kv_bytes_per_token / bytes_per_s
        overhead_s, chunk = profile.step_overhead_s, profile.chunk_tokens
        self._constant = launch * overhead_s
        self._new = launch * overhead_s / chunk + tokens * token_s + reading * READING_S
        self._cached = reading * READING_S
        self._product = attention * product_s
        self._matrix = products * token_s
        self._weights = products / bytes_per_s
        self._queued = launch * overhead_s / chunk + queued * token_s
        self._queued_product = queued * product_s
        self._queued_prompt = queue_reading * READING_S
        self._under_way = under_way / 2
        self._shared = shared * read_s
        self._chunk = chunk
        self._read_s = read_s
        overhead, weights, own, others, rows = token
        self._token = overhead * overhead_s
        self._token_weights = weights / bytes_per_s
        self._token_own = own * read_s
        self._token_others = others * read_s
        self._token_row = rows * overhead_s
        self._bytes_per_s = bytes_per_s
        self._overhead_s = overhead_s
        self._dense = model.dense_weight_bytes
        self._experts = model.expert_weight_bytes if model.experts else 0.0
        untouched = 1 - model.experts_per_token / model.experts if model.experts else 0.0
        self._log_untouched = math.log(untouched) if untouched > 0 else -math.inf
        self._profile = profile
        # Bytes that a step reads, by decoding rows.
        self._row_weights: list[float] = []

    def alone_s(self, new: float, cached: float) -> float:
        if new < 1.0:
            new = 1.0
        weights = self._dense
        if self._experts:
            weights += self._experts * (1 - math.exp(self._log_untouched * new))
        matrix_s, weights_s = self._matrix * new, self._weights * weights
        seconds = (
            self._constant
            + self._new * new
            + self._cached * cached
            + self._product * new * (cached + new / 2)
            + (matrix_s if matrix_s > weights_s else weights_s)
        )
        return seconds if seconds > LEAST_S else LEAST_S

    def more_s(self, new: float, load: "Load") -> float:
        queued = load.queued_tokens
        seconds = (
            self._queued * queued
            + self._queued_product * load.queued_products
            + self._queued_prompt * load.queued_prompt_tokens
        )
        rows, context = load.decoding, load.decoding_context_tokens
        if rows:
            weights_s = (self._of_rows(rows) if self._experts else self._dense) / self._bytes_per_s
            seconds += self._under_way * (self._overhead_s + weights_s + self._read_s * context)
        if context:
            steps = 1 + ((new if new > 1.0 else 1.0) + queued) / self._chunk
            seconds += self._shared * context * steps
        return seconds

    def token_s(self, context: float, load: "Load") -> float:
        rows = load.decoding
        weights = self._of_rows(rows + 1) if self._experts else self._dense
        seconds = (
            self._token
            + self._token_weights * weights
            + self._token_own * context
            + self._token_others * load.decoding_context_tokens
            + self._token_row * rows
        )
        return seconds if seconds > LEAST_S else LEAST_S

    def _of_rows(self, rows: int) -> float:
        known = self._row_weights
        if rows < len(known):
            return known[rows]
        if rows >= _ROWS:
            return weight_bytes_read(self._profile, rows)
        known += [weight_bytes_read(self._profile, each) for each in range(len(known), rows + 1)]
        return known[rows]
