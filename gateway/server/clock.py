"""The gateway's clock: Unix time that never goes back, and follows the system's without jumps.

Decisions are made from differences of times, records tell the time of day, and both are of one clock, so that
a recording can be replayed. It runs with the monotonic clock; where the system's time was stepped, or the
machine slept, it runs at most `MAX_SLEW` faster or slower until it agrees. So a step by an hour ends no wait
early, and the records are right again after a while.
"""

import time
from typing import Final

MAX_SLEW: Final = 0.1
HORIZON_S: Final = 10.0
"""In which a small difference is made up for; `adjust` is called much more often."""


class Slew:
    """The line that the clock runs along (pure)."""

    def __init__(self, *, wall: float, monotonic: float) -> None:
        self._base, self._since, self._rate = wall, monotonic, 1.0

    def at(self, monotonic: float) -> float:
        return self._base + (monotonic - self._since) * self._rate

    def adjust(self, *, wall: float, monotonic: float) -> None:
        """`wall`: what the system says the time is now."""
        now = self.at(monotonic)
        self._base, self._since = now, monotonic
        self._rate = 1.0 + max(-MAX_SLEW, min(MAX_SLEW, (wall - now) / HORIZON_S))


class SteadyClock(Slew):
    def __init__(self) -> None:
        super().__init__(wall=time.time(), monotonic=time.monotonic())

    def __call__(self) -> float:
        # `at`, written out: this runs several times a request.
        return self._base + (_monotonic() - self._since) * self._rate

    def follow(self) -> None:
        """To be called about once a second."""
        self.adjust(wall=time.time(), monotonic=_monotonic())


_monotonic = time.monotonic
