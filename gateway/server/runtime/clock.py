"""The gateway's clocks.

Decisions are made from differences of times, records carry the time of day, and both are of one clock, so
that a recording can be replayed: the time of day at the start, carried on by the monotonic clock. A step of
the system's time ends no wait early; records keep the difference until the next start. What depends on the
true time of day, as the expiry of tokens does, takes `wall_clock`.
"""

import time
from typing import Final

wall_clock: Final = time.time


class SteadyClock:
    def __init__(self) -> None:
        self._offset_s = time.time() - monotonic_clock()

    def __call__(self) -> float:
        return self._offset_s + monotonic_clock()


monotonic_clock: Final = time.monotonic
