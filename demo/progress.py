"""Lines that say what is going on, with the time since the start."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

Say = Callable[[str], None]


class Progress:
    """Callable: prints one line with the elapsed time in front, at once."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def __call__(self, line: str) -> None:
        print(f"[{self.elapsed_s:6.1f} s] {line}", file=self._out, flush=True)
