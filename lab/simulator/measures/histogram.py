"""Quantiles of many numbers in little memory: a histogram with buckets that grow geometrically.

Source: DDSketch (arXiv 1908.10693), §2, without the collapsing of buckets: the numbers here are seconds and
ratios, and span few decades.

Invariants: a quantile is within `ERROR`, relative, of the number of that rank; count, sum, least and most are
exact; memory depends on the span of the numbers, not on how many there are.
"""

import math
from typing import Final

ERROR: Final = 0.005
_RATIO: Final = (1 + ERROR) / (1 - ERROR)
_LOG_RATIO: Final = math.log(_RATIO)
_MIDDLE: Final = 2 / (1 + _RATIO)
"""From a bucket's upper end to the number that is equally wrong about both ends."""


class Histogram:
    """Of numbers that are not negative."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = -math.inf
        self._zeros = 0
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        assert value >= 0, value
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)
        if value == 0:
            self._zeros += 1
            return
        bucket = math.ceil(math.log(value) / _LOG_RATIO)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """The number that so large a share does not exceed (by nearest rank); None if there is none."""
        if not self.count:
            return None
        rank = max(1, math.ceil(share * self.count))
        seen = self._zeros
        if seen >= rank:
            return 0.0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(self.most, max(self.least, _MIDDLE * _RATIO**bucket))
        raise AssertionError("the buckets hold fewer numbers than were counted")

    def curve(self, points: int = 200) -> list[tuple[float, float]]:
        """The distribution: numbers, and what share does not exceed them."""
        shares = [number / points for number in range(1, points + 1)]
        return [(value, share) for share in shares if (value := self.quantile(share)) is not None]
