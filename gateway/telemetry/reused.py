"""An answer that is made once for all requests at about the same time (pure)."""

from collections.abc import Callable


class Reused:
    def __init__(self, make: Callable[[], bytes], *, max_age_s: float) -> None:
        """`make`: its result must not depend on the request."""
        self._make = make
        self._max_age_s = max_age_s
        self._made = b""
        self._stale_at_s = float("-inf")

    def get(self, *, now: float) -> bytes:
        if now >= self._stale_at_s:
            self._made = self._make()
            self._stale_at_s = now + self._max_age_s
        return self._made
