"""The store in this process: for one gateway, and behind the socket of `local_server.py` for several."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from gateway.shared_state import protocol, writes
from gateway.shared_state.protocol import (
    Counters,
    Entry,
    StoreUnavailable,
    check_bucket,
    check_ttl,
    check_value,
)
from gateway.shared_state.writes import Addition, Settlement, Write

MAX_ENTRIES: Final = 1_000_000
"""Of each kind: entries, buckets, leases, streams, origins."""

V = TypeVar("V")


class _Lapsing(Generic[V]):
    """Values that lapse, at most `limit`: one more pushes out the one that was written longest ago."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[bytes | str, tuple[V, float]] = {}
        """With when each lapses; in the order of the last write."""
        self.pushed_out = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes | str, now: float) -> V | None:
        found = self._values.get(key)
        if found is None:
            return None
        if found[1] <= now:
            del self._values[key]
            return None
        return found[0]

    def put(self, key: bytes | str, value: V, lapses_at: float, now: float) -> None:
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

    def items(self, now: float) -> list[tuple[bytes | str, V]]:
        return [(key, value) for key, (value, lapses_at) in self._values.items() if now < lapses_at]


class _Lease(NamedTuple):
    number: int
    holder: str
    """Empty if it was released."""
    lapses_at: float


class _Stream:
    def __init__(self) -> None:
        self.last = 0
        self.payloads: deque[tuple[int, bytes]] = deque(maxlen=protocol.STREAM_LENGTH)


class Tables:
    """What a store does, at once and without a deadline. `clock`: seconds that never go back."""

    def __init__(self, clock: Callable[[], float], *, max_entries: int = MAX_ENTRIES) -> None:
        self._clock = clock
        self._entries: _Lapsing[bytes] = _Lapsing(max_entries)
        self._buckets: _Lapsing[tuple[float, float]] = _Lapsing(max_entries)
        """What is left, and when that was so."""
        self._leases: _Lapsing[_Lease] = _Lapsing(max_entries)
        self._streams: _Lapsing[_Stream] = _Lapsing(max_entries)
        self._gauges: _Lapsing[bytes] = _Lapsing(max_entries)

    def __len__(self) -> int:
        return sum(map(len, self._all()))

    @property
    def pushed_out(self) -> int:
        """How many were dropped before they lapsed because there were too many."""
        return sum(each.pushed_out for each in self._all())

    def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        now = self._clock()
        return [self._entries.get(key, now) for key in keys]

    def claim(self, key: bytes, value: bytes, ttl_s: float) -> bytes:
        check_value(key, value, ttl_s)
        now = self._clock()
        there = self._entries.get(key, now)
        if there is not None and there != value:
            return there
        self._entries.put(key, value, now + ttl_s, now)
        return value

    def write(self, write: Write) -> None:
        now = self._clock()
        match write:
            case Entry(key, None):
                self._entries.delete(key)
            case Entry(key, value, ttl_s):
                check_value(key, value, ttl_s)
                self._entries.put(key, value or b"", now + ttl_s, now)
            case Settlement(key, amount, limit, per_s):
                check_bucket(amount, limit, per_s)
                left = min(limit, self._left(key, limit, per_s, now) + amount)
                self._put_bucket(key, left, limit, per_s, now)
            case Addition(name, payload):
                protocol.check_size(payload)
                stream = self._streams.get(name, now) or _Stream()
                # A stream that began again, here or in a new process, goes on above the ids of before.
                stream.last = max(stream.last + 1, int(now * 1e6))
                stream.payloads.append((stream.last, payload))
                self._streams.put(name, stream, now + protocol.STREAM_TTL_S, now)

    def reserve(self, key: bytes, amount: float, limit: float, per_s: float) -> float:
        check_bucket(amount, limit, per_s)
        now = self._clock()
        left = self._left(key, limit, per_s, now)
        needed = min(amount, limit)
        if left < needed:
            return (needed - left) / per_s
        self._put_bucket(key, left - amount, limit, per_s, now)
        return 0.0

    def exchange(self, origin: str, gauges: bytes, ttl_s: float) -> dict[str, bytes]:
        check_value(b"", gauges, ttl_s)
        now = self._clock()
        self._gauges.put(origin, gauges, now + ttl_s, now)
        return {str(other): theirs for other, theirs in self._gauges.items(now) if other != origin}

    def lease(self, name: str, holder: str, ttl_s: float) -> int | None:
        check_ttl(ttl_s)
        now = self._clock()
        lease = self._leases.get(name, now) or _Lease(0, "", 0.0)
        number = lease.number
        if lease.holder != holder:
            if now < lease.lapses_at:
                return None
            number = max(number + 1, int(now * 1e6))
        self._leases.put(name, _Lease(number, holder, now + ttl_s), now + ttl_s + 86400.0, now)
        return number

    def release(self, name: str, holder: str) -> None:
        now = self._clock()
        lease = self._leases.get(name, now)
        if lease is not None and lease.holder == holder:
            self._leases.put(name, _Lease(lease.number, "", 0.0), now + 86400.0, now)

    def read(self, stream: str, after: str) -> list[tuple[str, bytes]]:
        protocol.check_position(after)
        last = int(after.partition("-")[0]) if after else 0
        found = self._streams.get(stream, self._clock())
        if found is None or found.last <= last:
            return []
        new = (payload for payload in found.payloads if payload[0] > last)
        return [(f"{number}-0", payload) for number, payload in islice(new, protocol.READ_LENGTH)]

    def _all(self) -> tuple["_Lapsing[object]", ...]:
        return (self._entries, self._buckets, self._leases, self._streams, self._gauges)  # type: ignore[return-value]

    def _left(self, key: bytes, limit: float, per_s: float, now: float) -> float:
        left, at_s = self._buckets.get(key, now) or (limit, now)
        return min(limit, left + (now - at_s) * per_s)

    def _put_bucket(self, key: bytes, left: float, limit: float, per_s: float, now: float) -> None:
        self._buckets.put(key, (left, now), now + (limit - left) / per_s, now)


class MemoryStore:
    """Implements `Store`; never down while it is open."""

    def __init__(self, clock: Callable[[], float], *, max_entries: int = MAX_ENTRIES) -> None:
        self.tables = Tables(clock, max_entries=max_entries)
        self.counters = Counters()
        self.is_up = True

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
        for entry in entries:
            self._write(entry)

    async def reserve(self, key: bytes, amount: float, limit: float, per_s: float) -> float:
        self._called(len(key))
        return self.tables.reserve(key, amount, limit, per_s)

    def settle(self, key: bytes, amount: float, limit: float, per_s: float) -> None:
        self._write(Settlement(key, amount, limit, per_s))

    async def exchange(self, origin: str, gauges: bytes, ttl_s: float) -> dict[str, bytes]:
        self._called(len(gauges))
        others = self.tables.exchange(origin, gauges, ttl_s)
        self.counters.bytes_received += sum(map(len, others.values()))
        return others

    async def lease(self, name: str, holder: str, ttl_s: float) -> int | None:
        self._called(0)
        return self.tables.lease(name, holder, ttl_s)

    async def release(self, name: str, holder: str) -> None:
        self._called(0)
        self.tables.release(name, holder)

    def append(self, stream: str, payload: bytes) -> None:
        self._write(Addition(stream, payload))

    async def read(self, stream: str, after: str) -> list[tuple[str, bytes]]:
        self._called(0)
        payloads = self.tables.read(stream, after)
        self.counters.bytes_received += sum(len(payload) for _, payload in payloads)
        return payloads

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

    def _write(self, write: Write) -> None:
        if not self.is_up:
            self.counters.dropped_writes += 1
            return
        self.tables.write(write)
        self.counters.writes += 1
        self.counters.bytes_sent += writes.size(write)
