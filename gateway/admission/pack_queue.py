"""Packing: in which order do the sessions of a pool wait for a place?

Source: MARS (§4.2), PackQueue. Its Algorithm 1 is reconstructed from the prose: the text lacks it as typeset.

Symbols: *elevated CPU pressure* → `is_cpu_bound`: the least work for tools is first.

Deviations: MARS prefers small prefills; here the session with the least projected KV over all its turns to
come is first, in steps of a quarter, then in the order of tasks' arrival (Sutradhara §4.3). That is shortest
remaining work first, in KV times the time of holding it. Under CPU pressure MARS prefers sessions with much
GPU work, because they bring fewer tools; here the expected tool time of the agent type counts itself. Where
KV is short MARS lets fitting sessions pass; that gained nothing (decision 0029). Evicted sessions are first,
in the order of tasks' arrival: their state is still warm. MARS bounds no wait; here `max_door_wait` does.

Theory of operation. The sessions of one tenant and class wait in a `TenantQueue`, in this order. A pool's
`SessionQueue` serves reactive and aged sessions before proactive ones (`classes.py`), and within a class the
tenant with the lowest charge (`fair_share.py`). A session is overdue after `max_door_wait` times its expected
stay; the longest overdue is next, unless its tenant is at its quota or far above its share.

Invariants: a session is in the queue at most once; taking out or picking costs logarithmic time and looks at
a bounded number of tenants.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final, Literal

import msgspec

from gateway.admission.classes import ServiceClass
from gateway.admission.footprint import demand_of
from gateway.admission.sessions import Member
from gateway.admission.tenants.fair_share import FairShare
from gateway.domain.agent_key import AgentKey
from gateway.domain.ids import SessionId, TenantId
from gateway.workflow.aeg.graph import Graph

# Tenants without places that are compared; those with places are bounded by the places.
_LOOKED_AT: Final = 32


class PackingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    order: Literal["smallest", "arrival"] = "smallest"
    """The least KV to come is first; `arrival` is a baseline."""


class Entry(msgspec.Struct, kw_only=True, eq=False):
    """A session that waits for a place."""

    session: SessionId
    tenant: TenantId
    agent: AgentKey
    peak: float
    """KV tokens expected at most."""
    work: float
    """Expected KV tokens, summed over its turns to come."""
    task_arrived_s: float
    tool_s: float = 0.0
    """Expected tool time, in total."""
    lasts_s: float = 0.0
    """Expected stay: turns and pauses."""
    is_light: bool = False
    """Its tools need no core."""
    since_s: float
    """Its first request; a retry keeps it."""
    is_warm: bool = False
    """It was evicted, and its state may still be there."""
    is_aged: bool = False
    service_class: ServiceClass = ServiceClass.REACTIVE
    """Set by the queue, like `number`."""
    number: int = 0


_Key = tuple[float, ...]
_Heap = list[tuple[_Key, int, Entry]]


class TenantQueue:
    """Sessions of one tenant and class."""

    def __init__(self, order: str) -> None:
        self._order = order
        self._entries: dict[SessionId, Entry] = {}
        self._in_order: _Heap = []
        self._lightest: _Heap = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        assert entry.session not in self._entries
        self._entries[entry.session] = entry
        self._count += 1
        entry.number = self._count
        arrived, is_cold = entry.task_arrived_s, not entry.is_warm
        by_work = (is_cold, _step(entry.work) if is_cold else 0, arrived)
        for heap, key in (
            (self._in_order, by_work if self._order == "smallest" else (is_cold, entry.since_s)),
            (self._lightest, (is_cold, not entry.is_light, _step(1000.0 * entry.tool_s), arrived)),
        ):
            heapq.heappush(heap, (key, self._count, entry))

    def take(self, session: SessionId) -> None:
        """Takes a session out. Raises KeyError if it does not wait."""
        del self._entries[session]
        for heap in (self._in_order, self._lightest):
            if len(heap) > 2 * len(self._entries) + 16:
                heap[:] = [item for item in heap if self._entries.get(item[2].session) is item[2]]
                heapq.heapify(heap)

    def lightest(self) -> Entry:
        return self._first(self._lightest)

    def next(self, *, is_cpu_bound: bool) -> Entry:
        goes_by_tools = is_cpu_bound and self._order != "arrival"
        return self._first(self._lightest if goes_by_tools else self._in_order)

    def _first(self, heap: _Heap) -> Entry:
        while self._entries.get(heap[0][2].session) is not heap[0][2]:
            heapq.heappop(heap)
        return heap[0][2]


class SessionQueue:
    """All that wait for one pool."""

    def __init__(self, order: str, fair: FairShare, *, age_s: float, max_door_wait: float) -> None:
        """`age_s`: a proactive session ages after that. `max_door_wait`: in expected stays."""
        self._order = order
        self._fair = fair
        self._age_s = age_s
        self._max_door_wait = max_door_wait
        self._tenants: dict[ServiceClass, OrderedDict[TenantId, TenantQueue]] = {
            each: OrderedDict() for each in ServiceClass
        }
        self.entries: dict[SessionId, Entry] = {}
        # A heap of the times at which entries age or become overdue.
        self._due: list[tuple[float, int, Entry]] = []
        # The longest overdue is first, those that may not enter last. All stay in their tenants' queues.
        self.overdue: dict[SessionId, Entry] = {}
        self._number = 0
        # The sum of expected KV tokens.
        self.peaks = 0.0

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, entry: Entry, service_class: ServiceClass) -> None:
        self._fair.wait(entry.tenant, 1)
        self.peaks += entry.peak
        self._put(entry, service_class)
        if len(self._due) > 2 * len(self.entries) + 64:
            self._due = [item for item in self._due if self.entries.get(item[2].session) is item[2]]
            heapq.heapify(self._due)

    def take(self, session: SessionId) -> None:
        """Takes a session out. Raises KeyError if it is not in."""
        entry = self._take(session)
        self._fair.wait(entry.tenant, -1)
        self.peaks = self.peaks - entry.peak if self.entries else 0.0
        self.overdue.pop(session, None)

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
                self.overdue[entry.session] = entry

    def next(self, may: Callable[[TenantId], bool], *, is_cpu_bound: bool) -> Entry | None:
        """An overdue session of any tenant, so that new tenants' sessions do not pass others for good; else
        the next of the most entitled tenant that may have another place."""
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
                looked_at += tenant not in fair.held
                if looked_at >= _LOOKED_AT:
                    break
            if first is not None:
                return first[1]
        return None

    def _longest_overdue(self, may: Callable[[TenantId], bool]) -> Entry | None:
        fair = self._fair
        for entry in list(islice(self.overdue.values(), _LOOKED_AT)):
            if may(entry.tenant):
                if not fair.is_far_beyond(fair.charge(entry.tenant) / fair.weight(entry.tenant)):
                    return entry
            self.overdue[entry.session] = self.overdue.pop(entry.session)
        return None

    def lightest(self, may: Callable[[TenantId], bool]) -> list[Entry]:
        some = islice(self._tenants[ServiceClass.REACTIVE].items(), 2 * _LOOKED_AT)
        found = [queue.lightest() for tenant, queue in some if may(tenant)]
        return sorted(found, key=lambda entry: (*self._fair.rank(entry.tenant), entry.number))

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


def entry_of(member: Member, graph: Graph, *, is_light: bool, cycle_s: float) -> Entry:
    """`cycle_s`: from one turn of a session to the next."""
    assert member.waiting_since_s is not None
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
        since_s=member.waiting_since_s,
        is_warm=member.was_evicted,
    )


def _step(amount: float) -> int:
    return math.floor(math.log(max(amount, 1.0)) / math.log(1.25))
