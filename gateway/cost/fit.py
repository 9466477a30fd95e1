"""A decaying linear fit with a prior belief: seconds = Σ θ · x.

Features are in seconds by the belief, so a coefficient is the belief's error factor for its feature. Errors
are relative to the prediction: a short wait weighs as much as a long one.

Invariants: memory and time of an observation are constant; no coefficient is negative; a single outlier moves
the fit no more than an observation at the edge of the usual; a feature never observed keeps its belief, times
the overall error factor.
"""

import math
from collections.abc import Sequence
from itertools import repeat
from operator import mul, truediv
from typing import Final

# Observations until an old one counts 1/e.
MEMORY: Final = 100
# Weight of the belief, as a share of the memory.
BELIEF: Final = 0.02
# Clip of errors, in usual errors (Huber).
UNUSUAL: Final = 1.5
# CUSUM limit: errors to one side, each less one usual error and at most two.
CHANGED: Final = 8.0
# Share of the memory kept after a change.
KEPT: Final = 0.02
# Observations without clipping.
SETTLING: Final = 10
_SWEEPS: Final = 3
_TINY: Final = 1e-12


class DecayingFit:
    def __init__(self, belief: Sequence[float], *, trust: float) -> None:
        """`belief`: the prior coefficients; `trust`: their first weight, in observations."""
        self._belief = tuple(belief)
        self._trust = trust
        size = len(self._belief)
        # Σ w x xᵀ, of features relative to the prediction.
        self._products = [[0.0] * size for _ in range(size)]
        # Σ w x y, likewise.
        self._targets = [0.0] * size
        self._usual_error = 0.0
        self._settling = SETTLING
        # CUSUM, to either side.
        self._late = self._early = 0.0
        self._last_scale = 1.0
        self.coefficients = list(self._belief)
        self.observations = 0

    def predict(self, features: Sequence[float]) -> float:
        total: float = sum(map(mul, self.coefficients, features))
        return total

    def observe(self, features: Sequence[float], seconds: float) -> None:
        predicted = max(sum(map(mul, self.coefficients, features)), _TINY)
        error = math.log(seconds / predicted)
        weight = self._weight(error)
        is_far_off = max(self._late, self._early) >= CHANGED
        keep = 1 - 1 / MEMORY
        if is_far_off:
            self._late = self._early = 0.0
            self._settling, keep = SETTLING, KEPT
        # By the geometric mean: relative to a far too long prediction alone, its error would hardly count.
        unit = math.sqrt(predicted * seconds)
        x, y = list(map(truediv, features, repeat(unit))), seconds / unit
        for i, row in enumerate(self._products):
            scaled = weight * x[i]
            self._targets[i] = keep * self._targets[i] + scaled * y
            for j, other in enumerate(x):
                row[j] = keep * row[j] + scaled * other
        self.observations += 1
        self._solve()

    def _weight(self, error: float) -> float:
        limit = UNUSUAL * self._usual_error
        if self._settling or abs(error) <= limit:
            self._settling = max(0, self._settling - 1)
            weight, counted = 1.0, abs(error)
        else:
            weight, counted = limit / abs(error), 2 * limit  # so that it grows, should all become unusual
        if not self._settling and self._usual_error > _TINY:
            relative = max(-2.0, min(2.0, error / self._usual_error))
            self._late = max(0.0, self._late + relative - 1)
            self._early = max(0.0, self._early - relative - 1)
        self._usual_error += (counted - self._usual_error) / min(self.observations + 1, 30)
        return weight

    def _solve(self) -> None:
        belief = self._belief
        observed = sum(map(mul, belief, self._targets))
        believed = 0.0
        for own, row in zip(belief, self._products, strict=True):
            believed += own * sum(map(mul, row, belief))
        scale = (observed + self._trust) / (believed + self._trust) if believed > _TINY else 1.0
        before, self._last_scale = self._last_scale, scale
        theta = self.coefficients
        for i, coefficient in enumerate(theta):
            theta[i] = coefficient * scale / before
        for _ in range(_SWEEPS):
            for i, row in enumerate(self._products):
                own = row[i]
                centre = scale * belief[i]
                if own <= _TINY:
                    theta[i] = centre
                    continue
                rest = self._targets[i] - sum(map(mul, row, theta)) + own * theta[i]
                theta[i] = max(0.0, (rest + BELIEF * own * centre) / (own * (1 + BELIEF)))
