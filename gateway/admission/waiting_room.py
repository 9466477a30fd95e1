"""The waiting room: turns in order of arrival, each with a deadline.

Invariants: a turn is in it at most once; deadlines do not decrease from head to tail (every turn waits
at most the same time), so the first to expire is always at the head.
"""

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from gateway.domain.ids import PoolId, RequestId


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    request: RequestId
    pool: PoolId
    body_bytes: int
    deadline_s: float


class WaitingRoom:
    def __init__(self) -> None:
        self._turns: OrderedDict[RequestId, Waiting] = OrderedDict()
        self._per_pool: dict[PoolId, int] = {}
        self.body_bytes = 0

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._turns

    def in_pool(self, pool: PoolId) -> int:
        return self._per_pool.get(pool, 0)

    def enter(self, waiting: Waiting) -> None:
        assert waiting.request not in self._turns
        self._turns[waiting.request] = waiting
        self._per_pool[waiting.pool] = self._per_pool.get(waiting.pool, 0) + 1
        self.body_bytes += waiting.body_bytes

    def leave(self, request: RequestId) -> Waiting:
        """Takes a turn out. Raises KeyError if it is not in."""
        waiting = self._turns.pop(request)
        self._per_pool[waiting.pool] -= 1
        if not self._per_pool[waiting.pool]:
            del self._per_pool[waiting.pool]
        self.body_bytes -= waiting.body_bytes
        return waiting

    def in_order(self) -> Iterator[Waiting]:
        """A stable copy, so that turns may leave while it is read."""
        return iter(tuple(self._turns.values()))

    def expired(self, *, now: float) -> list[RequestId]:
        expired = []
        for waiting in self._turns.values():
            if waiting.deadline_s > now:
                break
            expired.append(waiting.request)
        return expired

    def next_deadline_s(self) -> float | None:
        for waiting in self._turns.values():
            return waiting.deadline_s
        return None
