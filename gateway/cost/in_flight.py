"""A replica's turns in flight, and its load.

Prefills are served first in, first out; the first one counts without its expected progress.

Invariants: a turn is in at most once; without turns the load is 0.
"""

from collections.abc import Hashable

import msgspec

from gateway.cost.estimator import Load, Prediction


class _Turn(msgspec.Struct, gc=False):
    new_tokens: float
    context_tokens: float
    product: float
    prefill_s: float
    sent_s: float
    computed_s: float = 0.0
    """`InFlight._computed_s` at its first token."""


class InFlight:
    def __init__(self) -> None:
        self._prefilling: dict[Hashable, _Turn] = {}
        self._decoding: dict[Hashable, _Turn] = {}
        self._last_first_token_s = float("-inf")
        self._queued_tokens = self._queued_products = self._queued_context = 0.0
        self._decoding_context = 0.0
        # Sum of finished prefills, each alone.
        self._computed_s = 0.0

    def __len__(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    def load(self, *, now: float) -> Load:
        tokens, products, context = self._queued_tokens, self._queued_products, self._queued_context
        if self._prefilling:
            head = next(iter(self._prefilling.values()))
            last_s = self._last_first_token_s
            done = (now - (head.sent_s if head.sent_s > last_s else last_s)) / head.prefill_s
            done = 0.0 if done < 0.0 else done if done < 1.0 else 1.0
            tokens -= done * head.new_tokens
            products -= done * head.product
            context -= done * head.context_tokens
            if tokens < 0.0 or products < 0.0 or context < 0.0:  # by rounding
                tokens, products, context = max(0.0, tokens), max(0.0, products), max(0.0, context)
        return Load(
            decoding=len(self._decoding),
            decoding_context_tokens=self._decoding_context,
            queued_tokens=tokens,
            queued_products=products,
            queued_prompt_tokens=context,
        )

    def sent(self, turn: Hashable, prediction: Prediction, *, now: float) -> None:
        assert turn not in self._prefilling and turn not in self._decoding
        new, cached = prediction.work.new_tokens, prediction.work.cached_tokens
        product, context = new * (cached + new / 2), new + cached  # as `context_product`
        self._prefilling[turn] = _Turn(new, context, product, prediction.prefill_s, now)
        self._queued_tokens += new
        self._queued_products += product
        self._queued_context += context

    def first_token(self, turn: Hashable, *, now: float) -> None:
        """Idempotent."""
        if turn not in self._decoding:
            started = self._leave_queue(turn)
            self._computed_s += started.prefill_s
            started.computed_s = self._computed_s
            self._decoding[turn] = started
            self._decoding_context += started.context_tokens
            self._last_first_token_s = now

    def ended(self, turn: Hashable) -> float:
        """Returns the seconds of other turns' prefills since its first token."""
        if turn in self._prefilling:
            self._leave_queue(turn)
            return 0.0
        ended = self._decoding.pop(turn)
        self._decoding_context -= ended.context_tokens
        if not self._decoding:
            self._decoding_context = 0.0  # removes rounding errors
        return self._computed_s - ended.computed_s

    def _leave_queue(self, turn: Hashable) -> _Turn:
        left = self._prefilling.pop(turn)
        self._queued_tokens -= left.new_tokens
        self._queued_products -= left.product
        self._queued_context -= left.context_tokens
        if not self._prefilling:
            self._queued_tokens = self._queued_products = self._queued_context = 0.0
        return left
