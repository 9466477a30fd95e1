"""A rate limit for work that costs more than a turn may.

Invariant: over any time, at most `per_s` a second are granted, after a first `burst`.
"""


class Allowance:
    __slots__ = ("_burst", "_refilled_s", "left", "per_s")

    def __init__(self, *, per_s: float, burst: float) -> None:
        self.per_s = per_s
        # May be below 0.
        self.left = self._burst = burst
        self._refilled_s: float | None = None

    def take(self, amount: float = 1.0, *, now: float) -> bool:
        if self._refilled_s is None:
            self._refilled_s = now
        elif now > self._refilled_s:
            left = self.left + (now - self._refilled_s) * self.per_s
            self.left = left if left < self._burst else self._burst
            self._refilled_s = now
        if self.left < amount:
            return False
        self.left -= amount
        return True
