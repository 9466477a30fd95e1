"""The newest records, numbered, for readers that come and go (pure).

Source: MARS (§4.1): one producer, many readers.

Deviations: MARS names no transport. Here nobody is waited for: a reader gets what is behind a number,
and learns by the numbers what it has missed. Records are kept as the lines that also go into the file, some
hundred at a time: as objects they would push what requests need out of the processor's caches.

Invariants: numbers count from 1 without holes; readers see the newest `size` records, or as many blocks of
them as `max_bytes` hold; at most one block more is kept.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from gateway.domain.records import Record

decode_record: Final = msgspec.json.Decoder(Record).decode


class _Block(NamedTuple):
    """Records that were added together."""

    last: int
    number: int
    lines: bytes


class Ring:
    def __init__(self, size: int, max_bytes: int) -> None:
        self.size = size
        self._max_bytes = max_bytes
        self._bytes = 0
        # The newest record's number; 0 before the first.
        self.last = 0
        self._blocks: deque[_Block] = deque()

    @property
    def first(self) -> int:
        """The number of the oldest that is kept; one more than `last` if none is."""
        if not self._blocks:
            return self.last + 1
        oldest = self._blocks[0]
        return max(oldest.last - oldest.number + 1, self.last - self.size + 1)

    def extend(self, lines: bytes, count: int) -> None:
        self.last += count
        self._blocks.append(_Block(self.last, count, lines))
        self._bytes += len(lines)
        while self._blocks and (
            self._bytes > self._max_bytes or self._blocks[0].last <= self.last - self.size
        ):
            self._bytes -= len(self._blocks.popleft().lines)

    def lines_behind(self, number: int, limit: int) -> list[bytes]:
        number = max(number, self.first - 1)
        found: list[bytes] = []
        for block in self._blocks:
            if block.last > number and len(found) < limit:
                found += block.lines.splitlines()[max(0, number - block.last + block.number) :]
        return found[:limit]

    def behind(self, number: int, limit: int) -> list[Record]:
        return [decode_record(line) for line in self.lines_behind(number, limit)]

    def newest_first(self) -> Iterator[Record]:
        left = self.last - self.first + 1
        for block in reversed(tuple(self._blocks)):
            newest = block.lines.splitlines()[::-1][:left]
            left -= len(newest)
            yield from map(decode_record, newest)
