"""Where is the knee? The load up to which stock vLLM with affinity keeps up.

A load is below the knee if sessions take, on average, at most `BEHIND` times as long as they would with a
KV cache that never fills; and if with that, they take at most `SATURATED` times as long as alone, for
beyond it the processors are the limit and memory no longer matters. It is bracketed from a guess by
doubling or halving, and the bracket is halved twice on the logarithm: the answer is right to within 9 %.
"""

from collections.abc import Callable
from math import sqrt
from typing import Final, NamedTuple

BEHIND: Final = 1.25
SATURATED: Final = 3.0
_DOUBLINGS: Final = 8
_HALVINGS: Final = 2


class Slow(NamedTuple):
    """Mean completion over isolated time."""

    stock: float
    unlimited: float

    @property
    def keeps_up(self) -> bool:
        return self.stock <= BEHIND * self.unlimited and self.unlimited <= SATURATED


def find_knee(slowdown: Callable[[float], Slow], guess: float) -> tuple[float, dict[float, Slow]]:
    """The knee, and the slowdown at each load that was tried."""
    tried: dict[float, Slow] = {}

    def keeps_up(load: float) -> bool:
        tried[load] = slowdown(load)
        return tried[load].keeps_up

    factor = 2.0 if keeps_up(guess) else 0.5
    low = high = guess
    for _ in range(_DOUBLINGS):
        last, guess = guess, guess * factor
        if keeps_up(guess) != (factor > 1):
            low, high = sorted((last, guess))
            break
    else:
        return guess, tried
    for _ in range(_HALVINGS):
        middle = sqrt(low * high)
        low, high = (middle, high) if keeps_up(middle) else (low, middle)
    return sqrt(low * high), tried
