"""Packing: in which order do the sessions of one tenant and class wait?

Source: MARS (§4.2), PackQueue. Its Algorithm 1 is reconstructed from the prose: the text lacks it as
typeset.

Symbols: *elevated CPU pressure* → `is_cpu_bound`: those that bring the least work for tools first.

Deviations: MARS prefers smaller prefills; here those whose *session* is projected to hold the least KV over
all its turns to come, in steps of a quarter, and of equal ones the order of their tasks' arrival (Sutradhara
§4.3). That is shortest remaining work first, where what is scarce is KV times the time for which it is held.
Where tools are the bottleneck, MARS prefers sessions with much to do on the GPU, because they bring fewer
tools; here what they bring is expected from their agent type, and counts itself. Where KV is short MARS lets
what fits pass what does not; that gained nothing (decision 0029).
Sessions that were in before and gave their place back come first, in the order of their tasks' arrival: their
state is still warm. MARS bounds no wait; here `max_door_wait` does (`queue.py`).

Invariants: a session is in the queue at most once; taking out or picking costs logarithmic time, whatever the
number that waits.
"""

import heapq
import math
from typing import Literal

import msgspec

from gateway.admission.classes import ServiceClass
from gateway.domain.by_agent import AgentKey
from gateway.domain.ids import SessionId, TenantId


class PackingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    order: Literal["smallest", "arrival"] = "smallest"
    """Which session is next: that with the least KV to come; to compare with, in order of arrival."""


class Entry(msgspec.Struct, kw_only=True, eq=False):
    """A session that waits for a place."""

    session: SessionId
    tenant: TenantId
    agent: AgentKey
    peak: float
    """KV tokens that it is expected to hold at most."""
    work: float
    """KV tokens that it is expected to hold, summed over its turns to come."""
    task_arrived_s: float
    tool_s: float = 0.0
    """What its tools are expected to take, all together."""
    lasts_s: float = 0.0
    """What its turns to come are expected to take, with the pauses between them."""
    is_light: bool = False
    """Its tools are not in the way of others."""
    since_s: float
    """When it first asked; a retry keeps it."""
    is_warm: bool = False
    """It was in before, and its state may still be there."""
    is_aged: bool = False
    is_overdue: bool = False
    """It waited for as long as anybody may."""
    service_class: ServiceClass = ServiceClass.REACTIVE
    """Among which it waits. Set by the queue, as is what follows."""
    number: int = 0


_Key = tuple[float, ...]
_Heap = list[tuple[_Key, int, Entry]]


class TenantQueue:
    """The sessions of one tenant and class that wait for one pool."""

    def __init__(self, order: str) -> None:
        self._order = order
        self._entries: dict[SessionId, Entry] = {}
        self._in_order: _Heap = []
        self._lightest: _Heap = []
        self._newest: _Heap = []
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
            (self._newest, (-arrived,)),
        ):
            heapq.heappush(heap, (key, self._count, entry))

    def take(self, session: SessionId) -> None:
        """Takes a session out. Raises KeyError if it does not wait."""
        del self._entries[session]
        for heap in (self._in_order, self._lightest, self._newest):
            if len(heap) > 2 * len(self._entries) + 16:
                heap[:] = [item for item in heap if self._entries.get(item[2].session) is item[2]]
                heapq.heapify(heap)

    def newest(self) -> Entry:
        """Some session has to wait; so for the others."""
        return self._first(self._newest)

    def lightest(self) -> Entry:
        return self._first(self._lightest)

    def next(self, *, is_cpu_bound: bool) -> Entry:
        goes_by_tools = is_cpu_bound and self._order != "arrival"
        return self._first(self._lightest if goes_by_tools else self._in_order)

    def _first(self, heap: _Heap) -> Entry:
        while self._entries.get(heap[0][2].session) is not heap[0][2]:
            heapq.heappop(heap)
        return heap[0][2]


def _step(amount: float) -> int:
    return math.floor(math.log(max(amount, 1.0)) / math.log(1.25))
