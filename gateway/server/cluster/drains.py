"""Which replicas operators drained, as all gateways know it.

What was said of a replica carries a number that grows with each word; the greater number counts, at all
gateways. It stands in the shared store, also when the drain is over, so that a gateway which was cut off
cannot bring back what was lifted meanwhile.

Where replicas are found may say of one, too, that it goes: then it gets no new turns, whatever operators say.
Each gateway finds that out for itself.

Invariants: only members count, so what is remembered is bounded by them; one that leaves and comes again is
new here, unless the store still has a word on it.
"""

from collections.abc import Callable, Collection, Mapping

import msgspec

from gateway.core import events as ev
from gateway.domain.ids import ReplicaId


class Drain(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The last word on a replica. Of two with one number, said at two gateways at once, the drain counts."""

    number: int
    is_draining: bool


class Drains:
    def __init__(self, members: Collection[ReplicaId], send: Callable[[ev.Event], None]) -> None:
        self._members = members
        self._send = send
        self._said: dict[ReplicaId, Drain] = {}
        self._heard: Mapping[ReplicaId, Drain] = {}
        self._gone: set[ReplicaId] = set()
        self._found_going: set[ReplicaId] = set()

    def set_local(self, replica: ReplicaId, *, is_draining: bool) -> None:
        before = self._said.get(replica)
        self._take(replica, Drain(before.number + 1 if before is not None else 1, is_draining))

    def merge_remote(self, heard: Mapping[ReplicaId, Drain]) -> dict[ReplicaId, Drain | None]:
        """`heard`: what stands in the store. Returns what should stand there instead; None: nothing."""
        self._heard = heard
        for replica in heard:
            self.joined(replica)
        missing: dict[ReplicaId, Drain | None] = dict.fromkeys(self._gone & heard.keys())
        self._gone.clear()
        missing.update((replica, said) for replica, said in self._said.items() if said != heard.get(replica))
        return missing

    def found(self, replica: ReplicaId, *, is_going: bool) -> None:
        if is_going != (replica in self._found_going):
            (self._found_going.add if is_going else self._found_going.discard)(replica)
            self._send_for(replica, "as where it was found said")

    def joined(self, replica: ReplicaId) -> None:
        heard, said = self._heard.get(replica), self._said.get(replica)
        if heard is not None and replica in self._members and (said is None or said < heard):
            self._take(replica, heard)

    def left(self, replica: ReplicaId) -> None:
        self._found_going.discard(replica)
        if self._said.pop(replica, None) is not None:
            self._gone.add(replica)

    def _take(self, replica: ReplicaId, drain: Drain) -> None:
        self._said[replica] = drain
        self._send_for(replica, "as an operator said")

    def _send_for(self, replica: ReplicaId, why: str) -> None:
        said = self._said.get(replica)
        is_draining = replica in self._found_going or (said is not None and said.is_draining)
        self._send(ev.ReplicaDrained(replica, is_draining, why))
