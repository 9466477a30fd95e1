"""The queue of a pool: sessions that wait for a place, by class and tenant.

Invariants: a session is in it at most once; who is next is found by looking at a bounded number of tenants,
and of each at one session; reactive sessions, and aged ones, come before proactive ones; whoever waited
`max_door_wait` times as long as it is expected to stay is next, the longest overdue first, unless its tenant
may not have another place, or holds far more than its share.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
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
        self.entries: dict[SessionId, Entry] = {}
        self._due: list[tuple[float, int, Entry]] = []
        """A heap: when each has aged, or is overdue."""
        self._overdue: dict[SessionId, Entry] = {}
        """Which wait among the others of their tenants, too; the longest overdue first."""
        self._crowds: dict[TenantId, int] = {}
        self._number = 0
        self.peaks = 0.0
        """KV tokens that those that wait are expected to hold at most, all together."""

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, entry: Entry, service_class: ServiceClass) -> None:
        self._crowds[entry.tenant] = self._crowds.get(entry.tenant, 0) + 1
        self._fair.wait(entry.tenant, 1)
        self.peaks += entry.peak
        self._put(entry, service_class)
        if len(self._due) > 2 * len(self.entries) + 64:
            self._due = [item for item in self._due if self.entries.get(item[2].session) is item[2]]
            heapq.heapify(self._due)

    def take(self, session: SessionId) -> None:
        """Takes a session out. Raises KeyError if it is not in."""
        entry = self._take(session)
        self._crowds[entry.tenant] -= 1
        self._fair.wait(entry.tenant, -1)
        self.peaks = self.peaks - entry.peak if self.entries else 0.0
        self._overdue.pop(session, None)
        if not self._crowds[entry.tenant]:
            del self._crowds[entry.tenant]

    def age(self, *, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            entry = heapq.heappop(self._due)[2]
            if self.entries.get(entry.session) is not entry:
                continue
            if entry.service_class is ServiceClass.PROACTIVE:
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
        some = islice(self._tenants[ServiceClass.REACTIVE].items(), 2 * _LOOKED_AT)
        found = [queue.lightest() for tenant, queue in some if may(tenant)]
        return sorted(found, key=lambda entry: (*self._fair.rank(entry.tenant), entry.number))

    def least_entitled(self, *, apart_from: TenantId) -> TenantId | None:
        """Of the other tenants that of whom most wait for its weight; None if nobody of them waits."""
        return max((each for each in self._crowds if each != apart_from), key=self.crowd, default=None)

    def crowd(self, tenant: TenantId) -> float:
        return self._crowds.get(tenant, 0) / self._fair.weight(tenant)

    def newest_of(self, tenant: TenantId) -> Entry:
        """Of one of whom somebody waits."""
        [*_, queue] = [each[tenant] for each in self._tenants.values() if tenant in each]
        return queue.newest()

    def _put(self, entry: Entry, service_class: ServiceClass) -> None:
        tenants = self._tenants[service_class]
        queue = tenants.get(entry.tenant)
        if queue is None:
            queue = tenants[entry.tenant] = TenantQueue(self._order)
        queue.put(entry)
        self.entries[entry.session] = entry
        entry.service_class = service_class
        is_proactive = service_class is ServiceClass.PROACTIVE
        waits_s = self._age_s if is_proactive else self._max_door_wait * entry.lasts_s
        self._number += 1
        heapq.heappush(self._due, (entry.since_s + waits_s, self._number, entry))

    def _take(self, session: SessionId) -> Entry:
        entry = self.entries.pop(session)
        tenants = self._tenants[entry.service_class]
        tenants[entry.tenant].take(session)
        if not len(tenants[entry.tenant]):
            del tenants[entry.tenant]
        return entry


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
