"""The waiting room: turns that wait for a place, in lanes, each turn with a deadline.

Turns for the same replicas wait in the same *lane*. Only the first turn of a lane matters: if no replica has
room for it, none has room for those behind it. So filling a free place costs time by the number of lanes (one
per pool, and one per home, failed attempt or model that only some replicas serve), not of turns.

A turn is *held*, in no lane, while its session has no place or while it is to move.

Invariants: a turn is in the room at most once; lanes are first in, first out; no lane is empty; `body_bytes`
is the sum over all turns.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from operator import attrgetter

import msgspec

from gateway.domain.ids import NOBODYS, Body, PoolId, ReplicaId, RequestId


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas on which its turns may run."""

    pool: PoolId
    home: ReplicaId | None = None
    """The only replica, for turns with state there."""
    without: frozenset[ReplicaId] = frozenset()
    """Replicas with failed attempts."""
    model: str | None = None
    """Where only some replicas of the pool serve it."""


class Waiting(msgspec.Struct, kw_only=True, eq=False):
    request: RequestId
    lane: Lane
    body: Body = (NOBODYS, 0, "")
    body_bytes: int
    arrived_s: float
    deadline_s: float
    is_held: bool = False


class WaitingRoom:
    def __init__(self) -> None:
        # Read only.
        self.turns: dict[RequestId, Waiting] = {}
        # Turns with a known body. Read only.
        self.by_body: dict[Body, dict[RequestId, None]] = {}
        self._lanes: dict[Lane, OrderedDict[RequestId, Waiting]] = {}
        # A heap. Turns that left may stay, but never at its head.
        self._by_deadline: list[tuple[float, int, Waiting]] = []
        self._entries = 0
        self.body_bytes = 0

    def __len__(self) -> int:
        return len(self.turns)

    def __contains__(self, request: RequestId) -> bool:
        return request in self.turns

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self.turns.values())

    def in_lane(self, lane: Lane) -> int:
        return len(self._lanes.get(lane, ()))

    def first_of_each_lane(self, pool: PoolId) -> list[Waiting]:
        first = [next(iter(turns.values())) for lane, turns in self._lanes.items() if lane.pool == pool]
        return sorted(first, key=attrgetter("arrived_s"))

    def behind(self, first: Waiting) -> list[Waiting]:
        return list(self._lanes[first.lane].values())

    def held(self, pool: PoolId) -> list[Waiting]:
        return [waiting for waiting in self.turns.values() if waiting.is_held and waiting.lane.pool == pool]

    def enter(self, waiting: Waiting) -> None:
        assert waiting.request not in self.turns
        self.turns[waiting.request] = waiting
        if waiting.body[1]:
            self.by_body.setdefault(waiting.body, {})[waiting.request] = None
        if not waiting.is_held:
            self._lanes.setdefault(waiting.lane, OrderedDict())[waiting.request] = waiting
        self._entries += 1
        heapq.heappush(self._by_deadline, (waiting.deadline_s, self._entries, waiting))
        self.body_bytes += waiting.body_bytes

    def release(self, request: RequestId) -> Waiting:
        waiting = self.turns[request]
        assert waiting.is_held
        waiting.is_held = False
        self._lanes.setdefault(waiting.lane, OrderedDict())[waiting.request] = waiting
        return waiting

    def hold(self, request: RequestId) -> None:
        waiting = self.turns[request]
        self._leave_lane(waiting)
        waiting.is_held = True

    def leave(self, request: RequestId) -> Waiting:
        """Raises KeyError if the turn is not in."""
        waiting = self.turns.pop(request)
        if not waiting.is_held:
            self._leave_lane(waiting)
        self.body_bytes -= waiting.body_bytes
        if waiting.body[1]:
            copies = self.by_body[waiting.body]
            del copies[waiting.request]
            if not copies:
                del self.by_body[waiting.body]
        self._drop_left()
        return waiting

    def _leave_lane(self, waiting: Waiting) -> None:
        lane = self._lanes[waiting.lane]
        del lane[waiting.request]
        if not lane:
            del self._lanes[waiting.lane]

    def first_expired(self, *, now: float) -> RequestId | None:
        if not self._by_deadline or self._by_deadline[0][0] > now:
            return None
        return self._by_deadline[0][2].request

    def prolong_first(self, deadline_s: float) -> None:
        waiting = self._by_deadline[0][2]
        waiting.deadline_s = deadline_s
        self._entries += 1
        heapq.heapreplace(self._by_deadline, (deadline_s, self._entries, waiting))
        self._drop_left()

    def next_deadline_s(self) -> float | None:
        return self._by_deadline[0][0] if self._by_deadline else None

    def _drop_left(self) -> None:
        heap, turns = self._by_deadline, self.turns
        while heap and turns.get(heap[0][2].request) is not heap[0][2]:
            heapq.heappop(heap)
        if len(heap) > 2 * len(turns) + 64:
            heap[:] = [entry for entry in heap if turns.get(entry[2].request) is entry[2]]
            heapq.heapify(heap)
