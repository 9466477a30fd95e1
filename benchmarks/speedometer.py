"""How fast is this machine just now? Shared cores vary by half within minutes.

The same little work, in processor time, while nothing else of the benchmark runs: what two phases took can be
compared by what this took before and after each. Beside a phase it would tell what that phase does to caches.
"""

import statistics
import time
from typing import Final

import numpy as np

_TIMES: Final = 25
_REST_S: Final = 0.02
_NUMBERS: Final = 400_000
"""More than a core's own cache holds."""


class Work:
    def __init__(self) -> None:
        self._numbers = np.random.default_rng(1).standard_normal(_NUMBERS, dtype=np.float32)
        # Kept, and not allocated anew: fresh pages take several times as long as the work, and not always.
        self._room = np.empty_like(self._numbers)

    def __call__(self) -> None:
        for _ in range(4):
            np.multiply(self._numbers, self._numbers, out=self._room)
            np.exp(self._room, out=self._room).sum()


def pace_s() -> float:
    """Seconds of the work. Takes half a second."""
    work, took_s = Work(), []
    for _ in range(_TIMES):
        began_s = time.thread_time()
        work()
        took_s.append(time.thread_time() - began_s)
        time.sleep(_REST_S)
    return statistics.median(took_s)
