"""How long does a prompt's KV cache take from the engine that computed it to the one that decodes?

Source: ours; Agent.xpu's devices share one memory (§4.3), so it has no such term.

What is observed is what a first token came later than where the whole prompt would have been cached, for so
many tokens. So a transfer that fails, and whose prompt is computed after all, counts as one that took as
long as computing it. The rate is a ratio of sums that forget, from a belief that counts as one observation.
It returns to the belief by half in `_HALF_LIFE_S`, so that what once was slow is tried again.

Pairs of replicas are not told apart: of a hundred replicas most pairs would never be seen.

Invariants: memory is constant; times are never negative.
"""

import math
from typing import Final

_FORGETS: Final = 0.9
"""What a sum keeps at each observation."""
_BELIEVED_TOKENS: Final = 4_000.0
_HALF_LIFE_S: Final = 300.0


class TransferRate:
    """Of the engines of one pool."""

    def __init__(self, tokens_per_s: float) -> None:
        self._believed_s = 1.0 / tokens_per_s
        self._tokens = _BELIEVED_TOKENS
        self._seconds = _BELIEVED_TOKENS * self._believed_s
        self._seen_s = 0.0

    def transfer_s(self, tokens: float, *, now: float) -> float:
        return tokens * self._token_s(now)

    def observe(self, tokens: float, seconds: float, *, now: float) -> None:
        """So many tokens took so long, or nothing if `seconds` is negative: predictions err either way."""
        if tokens <= 0.0:
            return
        before_s = self._token_s(now)
        self._tokens *= _FORGETS
        self._seconds = self._tokens * before_s + max(0.0, seconds)
        self._tokens += tokens
        self._seen_s = now

    def _token_s(self, now: float) -> float:
        seen_s = self._seconds / self._tokens
        kept = math.exp2(-max(0.0, now - self._seen_s) / _HALF_LIFE_S)
        return self._believed_s + kept * (seen_s - self._believed_s)
