"""Which sets of labels have series of their own, where there may be many (pure).

Invariants: at most `most` have; whoever has fewer than others gets one of theirs, so nobody takes them all;
one that nothing was counted of for `IDLE_S` gives way to a new one of who has no more than its owner. So who
comes late is seen, and series do not come and go with every request.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

IDLE_S: Final = 3600.0

L = TypeVar("L", bound=tuple[str, ...])


class LabelSlots(Generic[L]):
    def __init__(
        self, most: int, forget: Callable[[L], None], owner: Callable[[L], str] = lambda _: ""
    ) -> None:
        """`owner`: whose a set is; by default all are one's."""
        self._most = most
        self._forget = forget
        self._owner = owner
        self._used_s: OrderedDict[L, float] = OrderedDict()
        self._held: Counter[str] = Counter()

    def take(self, labels: L, *, now: float) -> bool:
        if labels not in self._used_s:
            owner = self._owner(labels)
            if len(self._used_s) >= self._most:
                if (oldest := self._gives_way(owner, now=now)) is None:
                    return False
                del self._used_s[oldest]
                self._held -= Counter((self._owner(oldest),))
                self._forget(oldest)
            self._held[owner] += 1
        self._used_s[labels] = now
        self._used_s.move_to_end(labels)
        return True

    def _gives_way(self, owner: str, *, now: float) -> L | None:
        own, most = self._held[owner], max(self._held.values())
        for labels, used_s in self._used_s.items():
            held = self._held[self._owner(labels)]
            if (held >= own and now - used_s >= IDLE_S) or held == most > own + 1:
                return labels
        return None
