"""The circuit breaker of a store: after failures in a row it is left alone, and probed now and then."""

from typing import Final

FAILURES: Final = 3
FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 2.0


class Breaker:
    """Open at first: a probe closes it."""

    def __init__(self) -> None:
        self.is_closed = False
        # Until the next probe. It doubles from one to the next, until calls work again.
        self.wait_s = FIRST_WAIT_S
        self._failures = 0
        self._failed_at = float("-inf")

    def worked(self) -> None:
        if self.is_closed:
            self._failures = 0
            self.wait_s = FIRST_WAIT_S

    def failed(self, *, began: float, now: float) -> bool:
        """A call did; returns whether the breaker opened.

        Calls that were under way together fail for one reason, and count as one.
        """
        if not self.is_closed or began < self._failed_at:
            return False
        self._failed_at = now
        self._failures += 1
        if self._failures < FAILURES:
            return False
        self.open()
        return True

    def open(self) -> None:
        self.is_closed = False

    def probed(self, *, works: bool) -> None:
        self.wait_s = min(LONGEST_WAIT_S, self.wait_s * 2.0)
        self.is_closed = works
        self._failures = 0
