"""The waiting room: turns that wait for a slot, in lanes, each turn with a deadline.

Turns for the same replicas wait in the same *lane*. Only the first turn of a lane matters: if no replica has
room for it, none has room for those behind it. So filling a free slot costs time by the number of lanes (one
per pool, and one per home, failed attempt or model that only some replicas serve), not of turns. In a lane
tenants take turns, so one with thousands of turns holds up nobody else.

A turn is *held*, in no lane, while its session has no slot or while it is to move.

Invariants: a turn is in the room at most once; of a lane and a tenant the first turn is next; no lane is
empty; `body_bytes` is the sum over all turns. Where the room is full, a turn enters only in place of the
newest turn of the tenant with the most waiting turns for its weight, if that has more than its own tenant.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from operator import attrgetter

import msgspec

from gateway.domain.decision import RefusalReason
from gateway.domain.ids import NOBODYS, Body, PoolId, ReplicaId, RequestId, TenantId


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
    tenant: TenantId
    lane: Lane
    body: Body = (NOBODYS, 0, "")
    body_bytes: int
    arrived_s: float
    deadline_s: float
    is_held: bool = False


class WaitingRoom:
    def __init__(self, max_turns: int, max_bytes: int) -> None:
        self._max_turns, self._max_bytes = max_turns, max_bytes
        # Read only.
        self.turns: dict[RequestId, Waiting] = {}
        self._by_tenant: dict[TenantId, dict[RequestId, Waiting]] = {}
        # Turns with a known body. Read only.
        self.by_body: dict[Body, dict[RequestId, None]] = {}
        # The tenant whose turn is next is first.
        self._lanes: dict[Lane, OrderedDict[TenantId, dict[RequestId, Waiting]]] = {}
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

    def is_full(self, body_bytes: int) -> bool:
        """For one more turn."""
        return len(self.turns) >= self._max_turns or self.body_bytes + body_bytes > self._max_bytes

    def displaced_by(
        self, tenant: TenantId, body_bytes: int, weight: Callable[[TenantId], float]
    ) -> Waiting | RefusalReason:
        """Which turn leaves a full room for one of this tenant, or why that is refused. `weight`: of a
        tenant. Turns of sessions without a slot go first: others lose what is computed."""

        def crowd(of: TenantId) -> float:
            return len(self._by_tenant.get(of, ())) / weight(of)

        most = max((each for each in self._by_tenant if each != tenant), key=crowd, default=None)
        if most is None or not self._max_turns:
            return RefusalReason.QUEUE_FULL
        if crowd(most) <= crowd(tenant):
            return RefusalReason.TENANT_SHARE
        turns = self._by_tenant[most].values()
        leaves = next((each for each in reversed(turns) if each.is_held), next(reversed(turns)))
        fits = self.body_bytes - leaves.body_bytes + body_bytes <= self._max_bytes
        return leaves if fits else RefusalReason.QUEUE_FULL

    def has_lane(self, lane: Lane) -> bool:
        return lane in self._lanes

    def first_of_each_lane(self, pool: PoolId) -> list[Waiting]:
        lanes = [tenants for lane, tenants in self._lanes.items() if lane.pool == pool]
        first = [next(iter(next(iter(tenants.values())).values())) for tenants in lanes]
        return sorted(first, key=attrgetter("arrived_s"))

    def behind(self, first: Waiting) -> list[Waiting]:
        return list(chain.from_iterable(turns.values() for turns in self._lanes[first.lane].values()))

    def held(self, pool: PoolId) -> list[Waiting]:
        return [waiting for waiting in self.turns.values() if waiting.is_held and waiting.lane.pool == pool]

    def enter(self, waiting: Waiting) -> None:
        assert waiting.request not in self.turns
        self.turns[waiting.request] = waiting
        self._by_tenant.setdefault(waiting.tenant, {})[waiting.request] = waiting
        if waiting.body[1]:
            self.by_body.setdefault(waiting.body, {})[waiting.request] = None
        if not waiting.is_held:
            self._join_lane(waiting)
        self._entries += 1
        heapq.heappush(self._by_deadline, (waiting.deadline_s, self._entries, waiting))
        self.body_bytes += waiting.body_bytes

    def release(self, request: RequestId) -> Waiting:
        waiting = self.turns[request]
        assert waiting.is_held
        waiting.is_held = False
        self._join_lane(waiting)
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
        of_tenant = self._by_tenant[waiting.tenant]
        del of_tenant[request]
        if not of_tenant:
            del self._by_tenant[waiting.tenant]
        self.body_bytes -= waiting.body_bytes
        if waiting.body[1]:
            copies = self.by_body[waiting.body]
            del copies[waiting.request]
            if not copies:
                del self.by_body[waiting.body]
        self._drop_left()
        return waiting

    def _join_lane(self, waiting: Waiting) -> None:
        tenants = self._lanes.setdefault(waiting.lane, OrderedDict())
        tenants.setdefault(waiting.tenant, {})[waiting.request] = waiting

    def _leave_lane(self, waiting: Waiting) -> None:
        tenants = self._lanes[waiting.lane]
        turns = tenants.pop(waiting.tenant)
        del turns[waiting.request]
        if turns:
            tenants[waiting.tenant] = turns  # behind the others
        elif not tenants:
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
