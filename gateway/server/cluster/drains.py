"""Which replicas operators drained, as all gateways know it.

Each command for a replica has the next number; at all gateways the greatest number counts. It stays in the
shared store after the drain is over, so that a gateway which was cut off cannot restore a drain that was
lifted meanwhile.

Discovery may report a replica as terminating: then it gets no new turns, whatever operators want. Each
gateway detects that for itself.

Invariants: only members count, so the state is bounded by them; one that leaves and comes again is new here,
unless the store still has a command for it.
"""

from collections.abc import Callable, Collection, Mapping

import msgspec

from gateway.core import events as ev
from gateway.domain.ids import ReplicaId


class Drain(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The last command for a replica. Of two with one number, from two gateways at once, the drain counts."""

    number: int
    is_draining: bool


class Drains:
    def __init__(self, members: Collection[ReplicaId], send: Callable[[ev.Event], None]) -> None:
        self._members = members
        self._send = send
        self._newest: dict[ReplicaId, Drain] = {}
        self._stored: Mapping[ReplicaId, Drain] = {}
        self._gone: set[ReplicaId] = set()
        self._found_going: set[ReplicaId] = set()

    def set_local(self, replica: ReplicaId, *, is_draining: bool) -> None:
        before = self._newest.get(replica)
        self._take(replica, Drain(before.number + 1 if before is not None else 1, is_draining))

    def merge_remote(self, stored: Mapping[ReplicaId, Drain]) -> dict[ReplicaId, Drain | None]:
        """Returns what the store should have instead of `stored`; None: nothing."""
        self._stored = stored
        for replica in stored:
            self.joined(replica)
        missing: dict[ReplicaId, Drain | None] = dict.fromkeys(self._gone & stored.keys())
        self._gone.clear()
        missing.update(
            (replica, newest) for replica, newest in self._newest.items() if newest != stored.get(replica)
        )
        return missing

    def found(self, replica: ReplicaId, *, is_going: bool) -> None:
        if is_going != (replica in self._found_going):
            (self._found_going.add if is_going else self._found_going.discard)(replica)
            self._send_for(replica, "by discovery")

    def joined(self, replica: ReplicaId) -> None:
        stored, newest = self._stored.get(replica), self._newest.get(replica)
        if stored is not None and replica in self._members and (newest is None or newest < stored):
            self._take(replica, stored)

    def left(self, replica: ReplicaId) -> None:
        self._found_going.discard(replica)
        if self._newest.pop(replica, None) is not None:
            self._gone.add(replica)

    def _take(self, replica: ReplicaId, drain: Drain) -> None:
        self._newest[replica] = drain
        self._send_for(replica, "by an operator")

    def _send_for(self, replica: ReplicaId, why: str) -> None:
        newest = self._newest.get(replica)
        is_draining = replica in self._found_going or (newest is not None and newest.is_draining)
        self._send(ev.ReplicaDrained(replica, is_draining, why))
