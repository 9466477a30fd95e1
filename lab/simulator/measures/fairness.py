"""How evenly is it shared? Jain's index of what each gets.

Source: Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301 (1984).

Symbols: x_i → `share`; n → how many were added.

Deviations: what a session gets is its *progress*: how long it takes alone over how long it took, at most 1. A
tenant's is the mean of its sessions'. A session that failed made no progress.

Invariants: between 1/n (one has all) and 1 (all have the same).
"""


class Jain:
    def __init__(self) -> None:
        self._n = 0
        self._sum = 0.0
        self._squares = 0.0

    def add(self, share: float) -> None:
        self._n += 1
        self._sum += share
        self._squares += share * share

    @property
    def index(self) -> float | None:
        if not self._n:
            return None
        return self._sum**2 / (self._n * self._squares) if self._squares else 1.0


def progress(taken_s: float, isolated_s: float) -> float:
    return min(1.0, isolated_s / taken_s) if taken_s > 0 else 1.0
