"""Transfer times of KV caches from the prefill engine to the decoding one.

Source: ours; Agent.xpu's devices share one memory (§4.3), so it has no such term.

An observation is a first token's delay beyond the prediction with the whole prompt cached. So a failed
transfer counts with the time of its recomputation. The rate is a ratio of decaying sums, from a belief that
counts as one observation. It returns to the belief by half in `_HALF_LIFE_S`, so that a slow transfer is
tried again. All pairs of replicas count together: of a hundred replicas most pairs would never be seen.

Invariants: memory is constant; times are never negative.
"""

import math
from typing import Final

# Decay of the sums at each observation.
_FORGETS: Final = 0.9
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
        """Negative `seconds` count as 0: predictions err either way."""
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
