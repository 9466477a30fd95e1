"""How fast is this machine just now? Shared cores vary by half within minutes.

The same little work, once a second, in processor time: what two phases of a benchmark took can be compared
by what this took meanwhile.
"""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

_EVERY_S: Final = 1.0
_NUMBERS: Final = 400_000
"""More than a core's own cache holds."""


class Pace:
    """Of one phase. Seconds of the work, to be compared with another phase's."""

    def __init__(self) -> None:
        self.all_s: list[float] = []

    @property
    def s(self) -> float:
        return statistics.median(self.all_s)


class Work:
    def __init__(self) -> None:
        self._numbers = np.random.default_rng(1).standard_normal(_NUMBERS, dtype=np.float32)
        # Kept, and not allocated anew: fresh pages take several times as long as the work, and not always.
        self._room = np.empty_like(self._numbers)

    def __call__(self) -> None:
        for _ in range(4):
            np.multiply(self._numbers, self._numbers, out=self._room)
            np.exp(self._room, out=self._room).sum()


@contextmanager
def paced() -> Iterator[Pace]:
    """Measures as long as it is open, on a thread; at least once."""
    pace, is_over = Pace(), threading.Event()
    work = Work()

    def measure() -> None:
        while True:
            began_s = time.thread_time()
            work()
            pace.all_s.append(time.thread_time() - began_s)
            if is_over.wait(_EVERY_S):
                return

    thread = threading.Thread(target=measure, daemon=True)
    thread.start()
    try:
        yield pace
    finally:
        is_over.set()
        thread.join()
