"""The store in this process: for one gateway, and behind the socket of `local_server.py` for several."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec

from gateway.shared_state.protocol import Counters, Entry, OnReplaced, StoreUnavailable, checked_size

MAX_ENTRIES: Final = 1_000_000
"""Of each kind: entries, origins, rows of numbers."""


class _Lapsing:
    """Values that lapse, at most `limit`: one more pushes out the one that was written longest ago."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[bytes | str, tuple[bytes, float]] = {}
        """With when each lapses; in the order of the last write."""
        self.pushed_out = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes | str, now: float) -> bytes | None:
        found = self._values.get(key)
        if found is None:
            return None
        if found[1] <= now:
            del self._values[key]
            return None
        return found[0]

    def put(self, key: bytes | str, value: bytes, lapses_at: float, now: float) -> None:
        self._values.pop(key, None)
        # Each write looks at two, so what lapsed goes before it pushes out anything else.
        for old in list(islice(self._values, 2)):
            if self._values[old][1] <= now:
                del self._values[old]
        if len(self._values) >= self._limit:
            del self._values[next(iter(self._values))]
            self.pushed_out += 1
        self._values[key] = (value, lapses_at)

    def delete(self, key: bytes | str) -> None:
        self._values.pop(key, None)

    def items(self, now: float) -> list[tuple[bytes | str, bytes]]:
        return [(key, value) for key, (value, lapses_at) in self._values.items() if now < lapses_at]


class Tables:
    """What a store does, at once and without a deadline. `clock`: seconds that never go back."""

    def __init__(self, clock: Callable[[], float], *, max_entries: int = MAX_ENTRIES) -> None:
        self._clock = clock
        self._entries = _Lapsing(max_entries)
        self._gauges = _Lapsing(max_entries)
        self._rows = _Lapsing(max_entries)

    def __len__(self) -> int:
        return len(self._entries) + len(self._gauges) + len(self._rows)

    @property
    def pushed_out(self) -> int:
        """How many were dropped before they lapsed because there were too many."""
        return self._entries.pushed_out + self._gauges.pushed_out + self._rows.pushed_out

    def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        now = self._clock()
        return [self._entries.get(key, now) for key in keys]

    def claim(self, key: bytes, value: bytes, ttl_s: float) -> bytes:
        checked_size(key, value, ttl_s)
        now = self._clock()
        there = self._entries.get(key, now)
        if there is not None and there != value:
            return there
        self._entries.put(key, value, now + ttl_s, now)
        return value

    def write(self, entries: Sequence[Entry]) -> list[tuple[int, bytes]]:
        """In order. Returns where watched entries took the place of other values, and those."""
        now, replaced = self._clock(), []
        for at, entry in enumerate(entries):
            key, value, ttl_s = entry.key, entry.value, entry.ttl_s
            checked_size(key, value, ttl_s)
            if value is None:
                self._entries.delete(key)
                continue
            if entry.is_watched and (there := self._entries.get(key, now)) not in (None, value):
                replaced.append((at, there))
            self._entries.put(key, value, now + ttl_s, now)
        return replaced

    def add(self, key: bytes, more: Sequence[float], least: Sequence[float], ttl_s: float) -> list[float]:
        checked_size(key, None, ttl_s)
        now = self._clock()
        there = self._rows.get(key, now)
        row: list[float] = msgspec.json.decode(there) if there is not None else list(least)
        row = [one + other for one, other in zip(row, more, strict=True)]
        self._rows.put(key, msgspec.json.encode(row), now + ttl_s, now)
        return row

    def exchange(self, origin: str, gauges: bytes, ttl_s: float) -> dict[str, bytes]:
        checked_size(b"", gauges, ttl_s)
        now = self._clock()
        self._gauges.put(origin, gauges, now + ttl_s, now)
        return {str(other): theirs for other, theirs in self._gauges.items(now) if other != origin}


class MemoryStore:
    """Implements `Store`; never down while it is open."""

    def __init__(self, clock: Callable[[], float], *, max_entries: int = MAX_ENTRIES) -> None:
        self.tables = Tables(clock, max_entries=max_entries)
        self.counters = Counters()
        self.is_up = True
        self.on_replaced: list[OnReplaced] = []

    async def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._called(sum(map(len, keys)))
        found = self.tables.find(keys)
        self.counters.bytes_received += sum(len(value) for value in found if value)
        return found

    async def claim(self, key: bytes, value: bytes, ttl_s: float) -> bytes:
        self._called(len(key) + len(value))
        there = self.tables.claim(key, value, ttl_s)
        self.counters.bytes_received += len(there)
        return there

    def publish(self, entries: Sequence[Entry]) -> None:
        if not self.is_up:
            self.counters.dropped_writes += len(entries)
            return
        replaced = self.tables.write(entries)
        self.counters.bytes_sent += sum([len(entry.key) + len(entry.value or b"") for entry in entries])
        self.counters.writes += len(entries)
        for at, there in replaced:
            for hear in self.on_replaced:
                hear(entries[at], there)

    async def exchange(self, origin: str, gauges: bytes, ttl_s: float) -> dict[str, bytes]:
        self._called(len(gauges))
        others = self.tables.exchange(origin, gauges, ttl_s)
        self.counters.bytes_received += sum(map(len, others.values()))
        return others

    async def add(
        self, key: bytes, more: Sequence[float], least: Sequence[float], ttl_s: float
    ) -> list[float]:
        self._called(len(key))
        return self.tables.add(key, more, least, ttl_s)

    async def flush(self) -> None:
        """Nothing waits here."""

    async def aclose(self) -> None:
        self.is_up = False

    def _called(self, sent: int) -> None:
        self.counters.calls += 1
        if not self.is_up:
            self.counters.not_tried += 1
            raise StoreUnavailable("the store is closed")
        self.counters.bytes_sent += sent
