"""Error bars of predictions: quantiles of recent ratios, actual ÷ predicted.

The quantiles are conformal: of n ratios the ⌈0.9 (n + 1)⌉-th smallest, so that the next one lies within the
bars eight times in ten, for any distribution that changes slowly.

Invariant: `_sorted` holds the same ratios as `_recent`, at most `WINDOW`.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Final

WINDOW: Final = 128
_TAIL: Final = 0.1


class ErrorBars:
    def __init__(self, untried: float) -> None:
        """`untried`: the prior factor to either side."""
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        # The least and the greatest factor.
        self.bars = 1 / untried, untried

    def observe(self, ratio: float) -> None:
        self._recent.append(ratio)
        insort(self._sorted, ratio)
        if len(self._recent) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        count = len(self._sorted)
        rank = math.ceil((1 - _TAIL) * (count + 1))
        if rank <= count:
            self.bars = self._sorted[count - rank], self._sorted[rank - 1]
