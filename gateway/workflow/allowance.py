"""So many times a second: what costs more than a turn may cost is done as often as there is time for.

Invariant: over any time, at most `per_s` a second are granted, after a first `burst`.
"""


class Allowance:
    __slots__ = ("_burst", "_left", "_per_s", "_refilled_s")

    def __init__(self, *, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = self._left = burst
        self._refilled_s: float | None = None

    def has_any(self, *, now: float) -> bool:
        if self._refilled_s is None:
            self._refilled_s = now
        elif now > self._refilled_s:
            self._left = min(self._burst, self._left + (now - self._refilled_s) * self._per_s)
            self._refilled_s = now
        return self._left >= 1.0

    def take(self, *, now: float) -> bool:
        """Whether there was one to take."""
        if not self.has_any(now=now):
            return False
        self._left -= 1.0
        return True
