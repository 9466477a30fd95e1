"""An event loop whose time passes only where nobody can go on: tests of waits are exact, and do not wait."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

ARRIVES_WITHIN_S: Final = 0.02
"""What one end of a loopback connection sent, at the other end: real seconds without it mean that nothing
is under way, and time may pass."""


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(ARRIVES_WITHIN_S if timeout is None else min(timeout, ARRIVES_WITHIN_S))
        if not found and timeout is not None:
            self.passed_s += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """For sockets of this process. Time of other processes and threads is not its."""

    def __init__(self) -> None:
        self._passed = _Selector()
        super().__init__(self._passed)

    def time(self) -> float:
        return self._passed.passed_s


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
