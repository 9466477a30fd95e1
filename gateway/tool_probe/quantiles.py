"""Streaming quantiles of positive quantities that differ by orders of magnitude, in a few hundred bytes.

Source: none; a histogram of logarithms whose observations decay, and a log-normal fit beside it (SAGA, Alg.
1, "tool latencies are log-normal").

Symbols: H_t → `LogQuantiles`; μ_t, σ_t → `mu`, `sigma`; Percentile(H_t, p) → `quantile`.

Deviations: a fit alone is wrong for a tool with two modes (a cached build and a whole one), counts alone are
wrong while there are few. So the quantile moves from the fit's to the counted one.

Invariants: memory is fixed for a few distinct shares; an observation weighs half as much after `half_life`
later ones; no quantile is beyond the largest observation's bucket once there are `_COUNTED` observations.
"""

import math
from array import array
from statistics import NormalDist
from typing import Final

_BUCKETS: Final = 72
_RATIO: Final = 1.25
_LOG_RATIO: Final = math.log(_RATIO)
_RESCALE_AT: Final = 1e6
# Share of new observations after which quantiles are recomputed.
_STALE: Final = 0.03
# Observations from which on counts alone are used.
_COUNTED: Final = 40.0
_PRIOR_SIGMA: Final = 1.0
_PRIOR_WEIGHT: Final = 2.0
_LAST_SHARE, _LAST_COUNTED = -1.0, -2.0


class LogQuantiles:
    __slots__ = (
        *("_counts", "_gain", "_keep", "_known", "_log_low", "_new", "_squares", "_sum", "_weight", "weight"),
    )

    def __init__(self, *, low: float, half_life: float = 300.0) -> None:
        """`low`: smaller values are equal; the largest is about ten million times as much."""
        self._log_low = math.log(low)
        self._keep = 0.5 ** (1.0 / half_life)
        self._counts = array("f", bytes(4 * _BUCKETS))
        self._gain = 1.0
        # In observations; the latter times the gain, like the counts and sums.
        self.weight = self._weight = 0.0
        self._sum = 0.0
        self._squares = 0.0
        # Cached quantiles; of counts alone, the newest.
        self._known: dict[float, float] = {}
        self._new = 0

    def add(self, value: float) -> None:
        low = self._log_low
        log = math.log(value) if value > 0.0 else low
        if log < low:
            log = low
        gain = self._gain = self._gain / self._keep
        self._new += 1
        if self._new >= _STALE * (self._weight / gain):
            self._known.clear()
            self._new = 0
        place = int((log - low) / _LOG_RATIO)
        self._counts[place if place < _BUCKETS else _BUCKETS - 1] += gain
        self._weight += gain
        self.weight = self._weight / gain
        self._sum += gain * log
        self._squares += gain * log * log
        if gain > _RESCALE_AT:
            self._counts = array("f", [count / gain for count in self._counts])
            self._weight, self._sum, self._squares = (
                self._weight / gain,
                self._sum / gain,
                self._squares / gain,
            )
            self._gain = 1.0

    @property
    def mu(self) -> float:
        return self._sum / self._weight if self._weight else self._log_low

    @property
    def sigma(self) -> float:
        if not self._weight:
            return _PRIOR_SIGMA
        weight = self.weight
        variance = max(0.0, self._squares / self._weight - self.mu**2)
        return math.sqrt((variance * weight + _PRIOR_SIGMA**2 * _PRIOR_WEIGHT) / (weight + _PRIOR_WEIGHT))

    def quantile(self, share: float) -> float | None:
        """None before the first observation."""
        if not self._weight:
            return None
        known = self._known.get(share)
        if known is None:
            known = self._known[share] = self._work_out(share)
        return known

    def counted(self, share: float) -> float | None:
        """By counts alone, however few: where an error of a bucket is better than one of the fit. `share` is
        rounded to a percent."""
        if not self._weight:
            return None
        share, known = round(share, 2), self._known
        if known.get(_LAST_SHARE) != share:
            known[_LAST_SHARE], known[_LAST_COUNTED] = share, math.exp(self._counted(share))
        return known[_LAST_COUNTED]

    def beyond(self, value: float) -> float:
        """The share of observations not clearly smaller; 1 before the first."""
        if not self._weight or value <= 0.0:
            return 1.0
        place = int((math.log(value) - self._log_low) / _LOG_RATIO)
        if place <= 0:
            return 1.0
        return max(0.0, min(1.0, sum(self._counts[place:]) / self._weight))

    def _work_out(self, share: float) -> float:
        trust = min(1.0, self.weight / _COUNTED)
        counted = self._counted(share)
        if trust == 1.0:
            return math.exp(counted)
        fitted = self.mu + self.sigma * _NORMAL.inv_cdf(min(max(share, 1e-6), 1 - 1e-6))
        return math.exp(trust * counted + (1.0 - trust) * fitted)

    def _counted(self, share: float) -> float:
        """Its logarithm, within the bucket as if it were evenly filled."""
        wanted, last = share * self._weight, 0
        for place, count in enumerate(self._counts):
            if count and count >= wanted * (1.0 - 1e-6):
                return self._log_low + (place + min(1.0, wanted / count)) * _LOG_RATIO
            wanted -= count
            last = place if count else last
        return self._log_low + (last + 1) * _LOG_RATIO  # counts are rounded, and their sum is not


_NORMAL: Final = NormalDist()
