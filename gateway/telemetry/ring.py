"""The newest records, numbered, for readers that come and go (pure).

Source: MARS (§4.1): one producer, many readers.

Symbols: —

Deviations: MARS names no transport. Here nobody is waited for: a reader asks for what is behind a number,
and learns by the numbers what it has missed.

Invariants: numbers count from 1 without holes; at most `size` records are kept, the newest; records are kept
as they are, so adding some costs the same whoever reads.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

from gateway.domain.records import Record


class Ring:
    def __init__(self, size: int) -> None:
        self._kept: deque[Record] = deque(maxlen=size)
        self.last = 0
        """The newest record's number; 0 before the first."""

    @property
    def first(self) -> int:
        """The number of the oldest that is kept; one more than `last` if none is."""
        return self.last - len(self._kept) + 1

    @property
    def size(self) -> int:
        return self._kept.maxlen or 0

    def extend(self, records: Sequence[Record]) -> None:
        self._kept.extend(records)
        self.last += len(records)

    def behind(self, number: int, limit: int) -> list[Record]:
        """At most so many records whose numbers follow this one; the oldest that are kept, if it is older."""
        skipped = max(number + 1, self.first) - self.first
        wanted = min(limit, len(self._kept) - skipped)
        if wanted <= 0:
            return []
        if skipped > len(self._kept) // 2:  # a deque is walked from its ends
            newest = list(islice(reversed(self._kept), len(self._kept) - skipped))
            newest.reverse()
            return newest[:wanted]
        return list(islice(self._kept, skipped, skipped + wanted))

    def newest_first(self) -> "reversed[Record]":
        """Valid until the next record."""
        return reversed(self._kept)
