"""The waiting requests by rank. It has vLLM's ``RequestQueue`` interface, and nothing of vLLM."""

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class RankedQueue(Generic[Item]):
    """A priority queue whose order changes while its items wait.

    ``rank(item, now)`` is called when an item enters and at the times that ``next_rise(item, now)`` returns,
    so only iteration looks at all items.
    """

    def __init__(
        self,
        rank: Callable[[Item, float], Any],
        next_rise: Callable[[Item, float], float | None],
        now: float,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """``failed`` hears of ranks that cannot be had or compared; without it they raise."""
        # The time at which items are ranked; `advance` sets it.
        self.now = now
        self._rank = rank
        self._next_rise: Callable[[Item, float], float | None] = next_rise
        self._failed = failed
        self._heap: list[tuple[Any, int, Item]] = []
        self._rises: list[tuple[float, int, Item]] = []
        self._entries: dict[Item, int] = {}
        self._count = 0

    def advance(self, now: float) -> int:
        """Rank anew what is due, each item once, whatever `next_rise` says of it then; how many that were."""
        self.now = max(now, self.now)
        due: list[tuple[int, Item]] = []
        while self._rises and self._rises[0][0] <= self.now:
            _, entry, item = heapq.heappop(self._rises)
            due.append((entry, item))
        risen = [item for entry, item in due if self._entries.get(item) == entry]
        for item in risen:
            self._push(item)
        return len(risen)

    def add_request(self, request: Item) -> None:
        self._push(request)

    def pop_request(self) -> Item:
        item = self.peek_request()
        del self._entries[item]  # and `peek_request` drops what is left of it
        self._sweep()
        return item

    def peek_request(self) -> Item:
        try:
            return self._front()
        except TypeError as error:  # ranks that cannot be compared
            self._stop_ranking(error)
            return self._front()

    def _front(self) -> Item:
        heap, entries = self._heap, self._entries
        while heap:
            _, entry, item = heap[0]
            if entries.get(item) == entry:
                return item
            heapq.heappop(heap)
        raise IndexError("an empty queue has no front")

    def prepend_request(self, request: Item) -> None:
        """As `add_request`: the rank knows who goes first."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Item]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Item) -> None:
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Item]) -> None:
        """Those that are not here are passed over."""
        for request in requests:
            self._entries.pop(request, None)
        self._sweep()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Item]:
        try:
            live = self._in_order()
        except TypeError as error:
            self._stop_ranking(error)
            live = self._in_order()
        return iter(live)

    def _in_order(self) -> list[Item]:
        live = sorted(entry for entry in self._heap if self._entries.get(entry[2]) == entry[1])
        return [item for _, _, item in live]

    def _push(self, item: Item) -> None:
        self._count += 1
        self._entries[item] = self._count
        try:
            heapq.heappush(self._heap, (self._rank(item, self.now), self._count, item))
            rise = self._next_rise(item, self.now)
            if rise is not None:
                heapq.heappush(self._rises, (rise, self._count, item))
            self._sweep()
        except Exception as error:  # noqa: BLE001  # whoever puts a request here must not lose it
            self._stop_ranking(error)

    def _stop_ranking(self, error: Exception) -> None:
        """From now on the first to come is the first to go."""
        if self._failed is None:
            raise error
        self._rank, self._next_rise = (lambda item, now: ()), (lambda item, now: None)
        self._heap = [((), entry, item) for item, entry in self._entries.items()]
        heapq.heapify(self._heap)
        self._rises = []
        self._failed(error)

    def _sweep(self) -> None:
        """Drops the entries that something replaced, if they are many."""
        entries = self._entries
        if len(self._heap) <= 2 * len(entries) + 64:
            return
        self._heap = [each for each in self._heap if entries.get(each[2]) == each[1]]
        self._rises = [each for each in self._rises if entries.get(each[2]) == each[1]]
        heapq.heapify(self._heap)
        heapq.heapify(self._rises)
