"""A bounded map of several tenants: when it is full, the tenant with the most entries loses one first.

So no tenant can evict the entries of others by adding its own.

Invariants: the weights sum up to at most `max_weight`; the longest unseen entry of the heaviest tenant goes
first, of several such tenants the longest unseen of all; a tenant without entries leaves no trace; `get`,
`put` and `pop` take O(log tenants) on average.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Outdated marks, besides one for each tenant.
_SPARE: Final = 64


class _Entry(Generic[V]):
    __slots__ = ("seen", "value", "weight")

    def __init__(self, value: V, weight: int, seen: int) -> None:
        self.value = value
        self.weight = weight
        self.seen = seen


class _Held(Generic[K, V]):
    __slots__ = ("entries", "marked", "number", "weight")

    def __init__(self, number: int) -> None:
        # Unique; breaks ties in the heap.
        self.number = number
        # The longest unseen first.
        self.entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self.weight = 0
        # Its newest mark in the heap; others are outdated.
        self.marked = (0, 0, 0)

    def mark(self) -> tuple[int, int, int]:
        self.marked = (-self.weight, next(iter(self.entries.values())).seen, self.number)
        return self.marked


class TenantLru(Generic[T, K, V]):
    def __init__(self, max_weight: int) -> None:
        self._max = max_weight
        self.weight = 0
        self._seen = 0
        self._held: dict[T, _Held[K, V]] = {}
        # A heap. Each tenant has a mark with its present weight; some others are outdated.
        self._marks: list[tuple[tuple[int, int, int], T]] = []

    def __len__(self) -> int:
        return sum(len(held.entries) for held in self._held.values())

    def items(self) -> Iterator[tuple[T, K, V]]:
        for tenant, held in self._held.items():
            for key, entry in held.entries.items():
                yield tenant, key, entry.value

    def get(self, tenant: T, key: K) -> V | None:
        held = self._held.get(tenant)
        if held is None or (entry := held.entries.get(key)) is None:
            return None
        if entry.seen != self._seen:  # else it is the newest of all
            held.entries.move_to_end(key)
            self._seen = entry.seen = self._seen + 1
        return entry.value

    def put(self, tenant: T, key: K, value: V, weight: int = 1) -> list[tuple[T, K, V]]:
        self.pop(tenant, key)
        self._seen += 1
        held = self._held.get(tenant)
        if held is None:
            held = self._held[tenant] = _Held(self._seen)
        held.entries[key] = _Entry(value, weight, self._seen)
        self._weigh(tenant, held, weight)
        dropped = []
        while self.weight > self._max:
            whose = self._who_holds_most()
            oldest = next(iter(self._held[whose].entries))
            dropped.append((whose, oldest, self._drop(whose, oldest)))
        return dropped

    def pop(self, tenant: T, key: K) -> V | None:
        held = self._held.get(tenant)
        return self._drop(tenant, key) if held is not None and key in held.entries else None

    def _drop(self, tenant: T, key: K) -> V:
        held = self._held[tenant]
        entry = held.entries.pop(key)
        if not held.entries:
            del self._held[tenant]
        self._weigh(tenant, held, -entry.weight)
        return entry.value

    def _weigh(self, tenant: T, held: _Held[K, V], by: int) -> None:
        self.weight += by
        held.weight += by
        if held.entries:
            heappush(self._marks, (held.mark(), tenant))
        if len(self._marks) > 2 * len(self._held) + _SPARE:
            self._marks = [(each.mark(), tenant) for tenant, each in self._held.items()]
            heapify(self._marks)

    def _who_holds_most(self) -> T:
        while True:
            mark, tenant = self._marks[0]
            held = self._held.get(tenant)
            if held is None or held.marked != mark:
                heappop(self._marks)
            elif (now := held.mark()) != mark:  # its oldest entry was used since
                heapreplace(self._marks, (now, tenant))
            else:
                return tenant
