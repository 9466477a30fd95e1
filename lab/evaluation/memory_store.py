"""The shared store in this process, for brains that are replayed here."""

from collections.abc import Callable, Sequence

from gateway.shared_state.protocol import Counters, Entry, OnReplaced, StoreUnavailable, checked_size


class MemoryStore:
    """Implements `Store`; never down while it is open. What lapsed stays until it is written again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds that never go back."""
        self.counters = Counters()
        self.is_up = True
        self.on_replaced: list[OnReplaced] = []
        self._clock = clock
        self._entries: dict[bytes, tuple[bytes, float]] = {}
        """With when each lapses; so are those below."""
        self._gauges: dict[str, tuple[bytes, float]] = {}
        self._rows: dict[bytes, tuple[list[float], float]] = {}

    async def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._called()
        return [self._entry(key) for key in keys]

    async def claim(self, key: bytes, value: bytes, ttl_s: float) -> bytes:
        checked_size(key, value, ttl_s)
        self._called()
        there = self._entry(key)
        if there is None or there == value:
            self._entries[key] = (value, self._clock() + ttl_s)
            there = value
        return there

    def publish(self, entries: Sequence[Entry]) -> None:
        if not self.is_up:
            self.counters.dropped_writes += len(entries)
            return
        self.counters.writes += len(entries)
        for entry in entries:
            checked_size(entry.key, entry.value, entry.ttl_s)
            there = self._entry(entry.key)
            if entry.value is None:
                self._entries.pop(entry.key, None)
                continue
            self._entries[entry.key] = (entry.value, self._clock() + entry.ttl_s)
            if entry.is_watched and there is not None and there != entry.value:
                for on_replaced in self.on_replaced:
                    on_replaced(entry, there)

    async def exchange(self, origin: str, gauges: bytes, ttl_s: float) -> dict[str, bytes]:
        checked_size(b"", gauges, ttl_s)
        self._called()
        now = self._clock()
        self._gauges[origin] = (gauges, now + ttl_s)
        alive = {name: value for name, (value, lapses_at) in self._gauges.items() if now < lapses_at}
        del alive[origin]
        return alive

    async def add(
        self, key: bytes, more: Sequence[float], least: Sequence[float], ttl_s: float
    ) -> list[float]:
        checked_size(key, None, ttl_s)
        self._called()
        now = self._clock()
        there, lapses_at = self._rows.get(key, (list(least), now))
        row = [one + other for one, other in zip(there if now < lapses_at else least, more, strict=True)]
        self._rows[key] = (row, now + ttl_s)
        return list(row)

    async def flush(self) -> None:
        """Nothing waits here."""

    async def aclose(self) -> None:
        self.is_up = False

    def _entry(self, key: bytes) -> bytes | None:
        value, lapses_at = self._entries.get(key, (None, 0.0))
        return value if self._clock() < lapses_at else None

    def _called(self) -> None:
        self.counters.calls += 1
        if not self.is_up:
            self.counters.not_tried += 1
            raise StoreUnavailable("the store is closed")
