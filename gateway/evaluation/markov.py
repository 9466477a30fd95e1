"""What predictions of steps are held against: a Markov model of order 3.

It backs off to the longest context that it has seen, counts what followed there, and adds `alpha` to every
count. It learns online, from the same conversations in the same order.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

ORDER: Final = 3
ALPHAS: Final = (0.02, 0.1, 0.5)
"""Of these, the one that turns out best is what counts."""


class Markov:
    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._counts: dict[tuple[object, ...], dict[object, int]] = defaultdict(dict)
        self._symbols: dict[object, None] = {}

    def shares(self, agent: object, history: Sequence[object]) -> tuple[dict[object, float], float]:
        """Of every symbol that was seen, and of any other."""
        counts: dict[object, int] = {}
        for order in range(min(ORDER, len(history)), -1, -1):
            counts = self._counts.get((agent, *history[len(history) - order :]), {})
            if counts:
                break
        total = sum(counts.values()) + self._alpha * (len(self._symbols) + 1)
        shares = {symbol: (counts.get(symbol, 0) + self._alpha) / total for symbol in self._symbols}
        return shares, self._alpha / total

    def learn(self, agent: object, history: Sequence[object], came: object) -> None:
        self._symbols[came] = None
        for order in range(min(ORDER, len(history)) + 1):
            counts = self._counts[(agent, *history[len(history) - order :])]
            counts[came] = counts.get(came, 0) + 1
