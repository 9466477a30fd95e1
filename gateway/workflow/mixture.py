"""Several opinions about what comes next become one: a mixture in the logarithmic domain, weighted online.

Source: none of the papers; the logistic mixing of context-mixing compressors, for more than two symbols.

Symbols: p_i, an opinion → a row of logarithms; w_i → `_weights`; p ∝ Π p_i^w_i.

Deviations: a weight belongs to a kind of context, to how much was seen in it and to whether it was always the
same: a context that was seen twice is trusted otherwise than one seen a hundred times.

Invariants: the result is a distribution; memory is fixed; one lesson moves a weight by at most `_MOST`.
"""

import math
from collections.abc import Sequence
from operator import mul
from typing import Final

_RATE: Final = 0.004
_MOST: Final = 3.0
_LEVELS: Final = 7
_ALL_OF: Final = 2_000
_EVERY: Final = 4
"""Of the lessons behind the first `_ALL_OF`, every so many are taken: weights move slowly by then."""
_DOUBT: Final = 0.01
"""Shared by all that may come, however sure the opinions are."""


def level(weight: float, *, is_sure: bool) -> int:
    """Of a context: how much was seen in it, and whether that was always the same."""
    return 2 * min(int(weight + 0.5).bit_length(), _LEVELS - 1) + is_sure


class Opinion:
    """What a context says: logarithms of probabilities, one for each candidate."""

    __slots__ = ("logs", "slot")

    def __init__(self, kind: int, level: int, logs: list[float]) -> None:
        self.slot = kind * 2 * _LEVELS + level
        self.logs = logs


class Mixture:
    __slots__ = ("_kinds", "_lessons", "_weights")

    def __init__(self, kinds: int) -> None:
        self._kinds = kinds
        self._lessons = 0
        self._weights = [1.0 / kinds] * (kinds * 2 * _LEVELS)

    def mix(self, opinions: Sequence[Opinion]) -> list[float]:
        """The distribution that they amount to."""
        weights = self._weights
        scores = [0.0] * len(opinions[0].logs)
        share_of_each = self._kinds / len(
            opinions
        )  # whoever has nothing to say leaves its weight to the others
        for opinion in opinions:
            weight = weights[opinion.slot] * share_of_each
            scores = [score + weight * log for score, log in zip(scores, opinion.logs)]  # noqa: B905 - for speed
        top = max(scores)
        shares = [math.exp(score - top) for score in scores]
        scale = (1.0 - _DOUBT) / sum(shares)
        doubt = _DOUBT / len(shares)
        return [share * scale + doubt for share in shares]

    def learn(self, opinions: Sequence[Opinion], mixed: Sequence[float], came: int) -> None:
        """The candidate at `came` is what followed."""
        self._lessons += 1
        if self._lessons > _ALL_OF and self._lessons % _EVERY:
            return
        weights = self._weights
        for opinion in opinions:
            logs = opinion.logs
            expected = sum(map(mul, mixed, logs))
            step = logs[came] - expected
            weights[opinion.slot] += _RATE * (_MOST if step > _MOST else -_MOST if step < -_MOST else step)
