"""The queue of a pool: sessions that wait for a place, by class and tenant.

Invariants: a session is in it at most once; who is next is found by looking at a bounded number of tenants,
and of each at one session; reactive sessions, and aged ones, come before proactive ones; of all places one in
`patience` or more goes to whoever starves, unless its tenant holds far more than its share.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection
from itertools import islice
from typing import Final

from gateway.admission.classes import ServiceClass
from gateway.admission.fair_share import FairShare
from gateway.admission.footprint import demand_of
from gateway.admission.packing import Entry, PackingConfig, TenantQueue
from gateway.admission.sessions import Member
from gateway.domain.decay import DecayedMean
from gateway.domain.ids import SessionId, TenantId
from gateway.workflow.aeg.graph import Graph

_LOOKED_AT: Final = 32
"""Tenants that hold nothing and are compared; those who hold something are fewer than places."""


class SessionQueue:
    def __init__(self, config: PackingConfig, fair: FairShare, age_s: float) -> None:
        """`age_s`: after so long a proactive session waits among the reactive ones."""
        self._config = config
        self._fair = fair
        self._age_s = age_s
        self._tenants: dict[ServiceClass, OrderedDict[TenantId, TenantQueue]] = {
            each: OrderedDict() for each in ServiceClass
        }
        self._entries: dict[SessionId, tuple[Entry, ServiceClass]] = {}
        self._ageing_heap: list[tuple[float, int, Entry]] = []
        self._waits = DecayedMean(half_life=20)
        self._crowds: dict[TenantId, int] = {}
        self._number = 0
        self._passed = 0
        """So many entered since one that starved."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, session: SessionId) -> bool:
        return session in self._entries

    @property
    def usual_wait_s(self) -> float:
        return self._waits.mean(0.0)

    def get(self, session: SessionId) -> Entry | None:
        found = self._entries.get(session)
        return found[0] if found else None

    def put(self, entry: Entry, service_class: ServiceClass) -> None:
        self._crowds[entry.tenant] = self._crowds.get(entry.tenant, 0) + 1
        self._fair.wait(entry.tenant, 1)
        if service_class is ServiceClass.PROACTIVE:
            self._number += 1
            heapq.heappush(self._ageing_heap, (entry.since_s + self._age_s, self._number, entry))
            if len(self._ageing_heap) > 2 * len(self._entries) + 64:
                self._ageing_heap = [item for item in self._ageing_heap if self._ages(item[2])]
                heapq.heapify(self._ageing_heap)
        self._put(entry, service_class)

    def take(self, session: SessionId) -> Entry:
        """Takes a session out. Raises KeyError if it is not in."""
        entry = self._take(session)
        self._crowds[entry.tenant] -= 1
        self._fair.wait(entry.tenant, -1)
        if not self._crowds[entry.tenant]:
            del self._crowds[entry.tenant]
        return entry

    def entered(self, entry: Entry, *, now: float) -> None:
        waited_s = now - entry.since_s
        self._passed = 0 if waited_s >= self._starves_after_s() else self._passed + 1
        self._waits.add(waited_s)

    def age(self, *, now: float) -> None:
        while self._ageing_heap and self._ageing_heap[0][0] <= now:
            entry = heapq.heappop(self._ageing_heap)[2]
            if self._ages(entry):
                self._take(entry.session)
                entry.is_aged = True
                self._put(entry, ServiceClass.REACTIVE)

    def next(self, may: Callable[[TenantId], bool], *, is_cpu_bound: bool, now: float) -> Entry | None:
        """The next one of the most entitled tenant that may have another place. After `patience` others it is
        whoever starves, of whatever tenant: newcomers of ever new tenants pass nobody for good."""
        if self._passed >= self._config.patience:
            starved = self._longest_waiting(may)
            if starved is not None and now - starved.since_s >= self._starves_after_s():
                return starved
        fair = self._fair
        for tenants in self._tenants.values():
            first: tuple[tuple[float, ...], Entry] | None = None
            looked_at = 0
            for tenant, queue in tenants.items():
                if not may(tenant):
                    continue
                entry = queue.next(is_cpu_bound=is_cpu_bound)
                if entry is not None:
                    rank = (*fair.rank(tenant), entry.since_s, entry.number)
                    if first is None or rank < first[0]:
                        first = rank, entry
                    looked_at += fair.held(tenant) <= 0
                    if looked_at >= _LOOKED_AT:
                        break
            if first is not None:
                return first[1]
        return None

    def _starves_after_s(self) -> float:
        return max(self._config.starved_s, self._config.patience * self.usual_wait_s)

    def _longest_waiting(self, may: Callable[[TenantId], bool]) -> Entry | None:
        """Of the reactive ones that may have a place, and whose tenant does not hold far more than its share;
        looks at a bounded number of them."""
        fair = self._fair
        for entry, service_class in islice(self._entries.values(), _LOOKED_AT):
            if service_class is ServiceClass.REACTIVE and may(entry.tenant):
                if not fair.is_far_beyond(fair.charge(entry.tenant) / fair.weight(entry.tenant)):
                    return entry
        return None

    def lightest(self, may: Callable[[TenantId], bool]) -> list[Entry]:
        found = []
        for tenant, queue in islice(self._tenants[ServiceClass.REACTIVE].items(), 2 * _LOOKED_AT):
            if may(tenant) and (entry := queue.lightest()) is not None:
                found.append((*self._fair.rank(tenant), entry.number, entry))
        return [each[-1] for each in sorted(found, key=lambda each: each[:-1])]

    def least_entitled(self) -> TenantId | None:
        """The tenant of whom most wait for its weight; None if nobody waits, or all are of one tenant."""
        if len(self._crowds) < 2:
            return None
        return max(self._crowds, key=lambda tenant: self._crowds[tenant] / self._fair.weight(tenant))

    @property
    def tenants(self) -> Collection[TenantId]:
        return self._crowds.keys()

    def crowd(self, tenant: TenantId) -> float:
        return self._crowds.get(tenant, 0) / self._fair.weight(tenant)

    def newest_of(self, tenant: TenantId) -> Entry | None:
        for service_class in reversed(ServiceClass):
            queue = self._tenants[service_class].get(tenant)
            if queue is not None and (newest := queue.newest()) is not None:
                return newest
        return None

    def _put(self, entry: Entry, service_class: ServiceClass) -> None:
        tenants = self._tenants[service_class]
        queue = tenants.get(entry.tenant)
        if queue is None:
            queue = tenants[entry.tenant] = TenantQueue(self._config.order)
        queue.put(entry)
        self._entries[entry.session] = (entry, service_class)

    def _take(self, session: SessionId) -> Entry:
        entry, service_class = self._entries.pop(session)
        tenants = self._tenants[service_class]
        queue = tenants[entry.tenant]
        queue.take(session)
        if not len(queue):
            del tenants[entry.tenant]
        return entry

    def _ages(self, entry: Entry) -> bool:
        found = self._entries.get(entry.session)
        return found is not None and found[0] is entry and not entry.is_aged


def entry_of(
    member: Member,
    graph: Graph,
    *,
    is_light: bool,
    since_s: float,
) -> Entry:
    """A session that begins to wait, with what its type's graph says of its work to come."""
    turn = max(1, member.turn)
    turns = 1.0 + graph.remaining(turn).turns
    return Entry(
        session=member.session,
        tenant=member.tenant,
        agent=member.agent,
        tokens=member.tokens,
        size=max(demand_of(graph, turn, member.tokens)),
        task_arrived_s=member.task_arrived_s,
        tool_s=turns * graph.tool_s(),
        is_light=is_light,
        since_s=since_s,
        is_warm=member.is_spilled,
    )
