"""The queue of a pool: sessions that wait for a place, by class and tenant.

Invariants: a session is in it at most once; who is next is found by looking at a bounded number of tenants,
and of each at one session; reactive sessions, and aged ones, come before proactive ones; whoever waited
`max_door_wait` times as long as it is expected to stay is next, the longest overdue first, unless its tenant
may not have another place, or holds far more than its share.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection
from itertools import islice
from typing import Final

from gateway.admission.classes import ServiceClass
from gateway.admission.fair_share import FairShare
from gateway.admission.footprint import demand_of
from gateway.admission.packing import Entry, TenantQueue
from gateway.admission.sessions import Member
from gateway.domain.ids import SessionId, TenantId
from gateway.workflow.aeg.graph import Graph

_LOOKED_AT: Final = 32
"""Tenants that hold nothing and are compared; those who hold something are fewer than places."""


class SessionQueue:
    def __init__(self, order: str, fair: FairShare, *, age_s: float, max_door_wait: float) -> None:
        """`age_s`: after so long a proactive session waits among the reactive ones. `max_door_wait`: a
        session is overdue after so many times as long as it is expected to stay."""
        self._order = order
        self._fair = fair
        self._age_s = age_s
        self._max_door_wait = max_door_wait
        self._tenants: dict[ServiceClass, OrderedDict[TenantId, TenantQueue]] = {
            each: OrderedDict() for each in ServiceClass
        }
        self._entries: dict[SessionId, tuple[Entry, ServiceClass]] = {}
        self._due: list[tuple[float, int, Entry]] = []
        """A heap: when each has aged, or is overdue."""
        self._overdue: dict[SessionId, Entry] = {}
        """Which wait among the others of their tenants, too; the longest overdue first."""
        self._crowds: dict[TenantId, int] = {}
        self._number = 0
        self.peaks = 0.0
        """KV tokens that those that wait are expected to hold at most, all together."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, session: SessionId) -> bool:
        return session in self._entries

    def get(self, session: SessionId) -> Entry | None:
        found = self._entries.get(session)
        return found[0] if found else None

    def put(self, entry: Entry, service_class: ServiceClass) -> None:
        self._crowds[entry.tenant] = self._crowds.get(entry.tenant, 0) + 1
        self._fair.wait(entry.tenant, 1)
        self.peaks += entry.peak
        self._put(entry, service_class)
        if len(self._due) > 2 * len(self._entries) + 64:
            self._due = [item for item in self._due if self._is_in(item[2])]
            heapq.heapify(self._due)

    def take(self, session: SessionId) -> Entry:
        """Takes a session out. Raises KeyError if it is not in."""
        entry = self._take(session)
        self._crowds[entry.tenant] -= 1
        self._fair.wait(entry.tenant, -1)
        self.peaks = self.peaks - entry.peak if self._entries else 0.0
        self._overdue.pop(session, None)
        if not self._crowds[entry.tenant]:
            del self._crowds[entry.tenant]
        return entry

    def age(self, *, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            entry = heapq.heappop(self._due)[2]
            if not self._is_in(entry):
                continue
            if self._entries[entry.session][1] is ServiceClass.PROACTIVE:
                self._take(entry.session)
                entry.is_aged = True
                self._put(entry, ServiceClass.REACTIVE)
            else:
                entry.is_overdue = True
                self._overdue[entry.session] = entry

    def next(self, may: Callable[[TenantId], bool], *, is_cpu_bound: bool) -> Entry | None:
        """Whoever is overdue, of whatever tenant: newcomers of ever new tenants pass nobody for good. Else
        the next one of the most entitled tenant that may have another place."""
        overdue = self._longest_overdue(may)
        if overdue is not None:
            return overdue
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

    def _longest_overdue(self, may: Callable[[TenantId], bool]) -> Entry | None:
        fair = self._fair
        for entry in islice(self._overdue.values(), _LOOKED_AT):
            if may(entry.tenant):
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
            queue = tenants[entry.tenant] = TenantQueue(self._order)
        queue.put(entry)
        self._entries[entry.session] = (entry, service_class)
        waits_s = self._max_door_wait * entry.lasts_s
        if service_class is ServiceClass.PROACTIVE:
            waits_s = self._age_s
        self._number += 1
        heapq.heappush(self._due, (entry.since_s + waits_s, self._number, entry))

    def _take(self, session: SessionId) -> Entry:
        entry, service_class = self._entries.pop(session)
        tenants = self._tenants[service_class]
        queue = tenants[entry.tenant]
        queue.take(session)
        if not len(queue):
            del tenants[entry.tenant]
        return entry

    def _is_in(self, entry: Entry) -> bool:
        found = self._entries.get(entry.session)
        return found is not None and found[0] is entry


def entry_of(
    member: Member,
    graph: Graph,
    *,
    is_light: bool,
    cycle_s: float,
    since_s: float,
) -> Entry:
    """A session that begins to wait, with what its type's graph says of its work to come. `cycle_s`: what
    sessions take from one turn to the next."""
    remaining = graph.outlook().remaining(max(1, member.turn))
    turns = 1.0 + remaining.turns
    return Entry(
        session=member.session,
        tenant=member.tenant,
        agent=member.agent,
        peak=max(demand_of(graph, max(1, member.turn), member.tokens)),
        work=turns * member.tokens + remaining.token_turns,
        task_arrived_s=member.task_arrived_s,
        tool_s=turns * graph.tool_s(),
        lasts_s=turns * cycle_s,
        is_light=is_light,
        since_s=since_s,
        is_warm=member.is_spilled,
    )
