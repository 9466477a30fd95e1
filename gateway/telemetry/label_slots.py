"""Which sets of labels have series of their own, where there may be many (pure).

Invariant: at most `most` have; one that nothing was counted of for `IDLE_S` gives way to a new one, and its
series end. So who comes late is seen, and series do not come and go with every request.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

IDLE_S: Final = 3600.0

L = TypeVar("L", bound=tuple[str, ...])


class LabelSlots(Generic[L]):
    def __init__(self, most: int, forget: Callable[[L], None]) -> None:
        self._most = most
        self._forget = forget
        self._used_s: OrderedDict[L, float] = OrderedDict()

    def take(self, labels: L, *, now: float) -> bool:
        if labels not in self._used_s and len(self._used_s) >= self._most:
            oldest, used_s = next(iter(self._used_s.items()))
            if now - used_s < IDLE_S:
                return False
            del self._used_s[oldest]
            self._forget(oldest)
        self._used_s[labels] = now
        self._used_s.move_to_end(labels)
        return True
