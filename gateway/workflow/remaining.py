"""How many steps a task has still to go, and how much work a step is.

Source: SAGA (§6.1, Eq. 9): work that remains, from the nodes that were not executed yet.

Symbols: |pending(t)| → `steps`; T_prefill, T_decode → tokens here, which `gateway/cost` turns into seconds.

Deviations: a task of agents has no plan to count off. What is left is what was left, on average, of the tasks
that came as far.

Invariants: memory is fixed; nothing is negative.
"""

from bisect import bisect_right
from typing import Final

_FIRST_STEPS: Final = (1, 2, 3, 5, 9, 17, 33, 65, 129)
_KEEP: Final = 0.995
_PRIOR_STEPS: Final = 5.0
_PRIOR_WEIGHT: Final = 1.0
_PRIOR_NEW: Final = 800.0
_PRIOR_OUTPUT: Final = 200.0
_EMA: Final = 0.02


class Remaining:
    __slots__ = ("_left", "_lessons", "_weight", "new_tokens", "output_tokens")

    def __init__(self) -> None:
        self._left = [0.0] * len(_FIRST_STEPS)
        self._weight = [0.0] * len(_FIRST_STEPS)
        self.new_tokens = _PRIOR_NEW
        """Tokens that a step's prompt has more than the one before: the moving average."""
        self.output_tokens = _PRIOR_OUTPUT
        self._lessons = 0

    def saw_step(self, new_tokens: float, output_tokens: float) -> None:
        self._lessons += 1
        rate = max(_EMA, 1.0 / (self._lessons + 1))
        self.new_tokens += rate * (max(0.0, new_tokens) - self.new_tokens)
        self.output_tokens += rate * (output_tokens - self.output_tokens)

    def saw_end(self, steps: int) -> None:
        """A task was over after so many steps."""
        for place, first in enumerate(_FIRST_STEPS):
            if first > steps:
                return
            self._left[place] = self._left[place] * _KEEP + (steps - first)
            self._weight[place] = self._weight[place] * _KEEP + 1.0

    def steps(self, done: int, *, ends: float) -> float:
        """So many more are expected; `ends`: the probability that none is."""
        place = max(0, bisect_right(_FIRST_STEPS, done) - 1)
        total = self._left[place] + _PRIOR_STEPS * _PRIOR_WEIGHT
        left = total / (self._weight[place] + _PRIOR_WEIGHT) - (done - _FIRST_STEPS[place])
        return (1.0 - ends) * max(1.0, left)
