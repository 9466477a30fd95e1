"""Where is the knee? The load up to which something keeps up, by whatever measure rises with the load.

It is bracketed from a guess by doubling or halving, and the bracket is halved twice on the logarithm: the
answer is right to within 9 %.
"""

from collections.abc import Callable
from math import sqrt
from typing import Final, NamedTuple

SLOW: Final = 1.6
BEHIND: Final = 1.25
SATURATED: Final = 3.0
_DOUBLINGS: Final = 8
_HALVINGS: Final = 2


class Slow(NamedTuple):
    """Mean completion over isolated time."""

    stock: float
    unlimited: float
    """With a KV cache that never fills."""

    @property
    def measure(self) -> float:
        """At most 1 where memory costs little; unless processors, not memory, are the limit."""
        return max(self.stock / self.unlimited / BEHIND, self.unlimited / SATURATED)


def find_knee(
    measure: Callable[[float], float], guess: float, *, at_most: float = SLOW
) -> tuple[float, dict[float, float]]:
    """The load at which the measure gets larger than that, and the measure at each load that was tried."""
    tried: dict[float, float] = {}

    def keeps_up(load: float) -> bool:
        tried[load] = measure(load)
        return tried[load] <= at_most

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
