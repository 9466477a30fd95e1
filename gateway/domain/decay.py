"""A mean that forgets.

Invariants: memory is fixed; the weight of an observation halves with every `half_life` later ones.
"""


class DecayedMean:
    __slots__ = ("_keep", "sum", "weight")

    def __init__(self, *, half_life: float) -> None:
        self._keep = 0.5 ** (1.0 / half_life)
        self.sum = 0.0
        # In observations; approaches 1.44 × `half_life`.
        self.weight = 0.0

    def add(self, value: float) -> None:
        self.weight = self.weight * self._keep + 1.0
        self.sum = self.sum * self._keep + value

    def mean(self, prior: float, strength: float = 1.0) -> float:
        """`strength`: of the prior, in observations."""
        return (self.sum + prior * strength) / (self.weight + strength)
