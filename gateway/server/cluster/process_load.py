"""What share of a core this process used lately."""

import time
from collections.abc import Callable
from typing import Final

_OVER_S: Final = 1.0


class ProcessLoad:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._at_s, self._used_s = now(), time.process_time()
        self._share = 0.0

    def share(self) -> float:
        """Over a second at least; 0 before the first has passed."""
        now = self._now()
        if now - self._at_s >= _OVER_S:
            used_s = time.process_time()
            self._share = (used_s - self._used_s) / (now - self._at_s)
            self._at_s, self._used_s = now, used_s
        return self._share
