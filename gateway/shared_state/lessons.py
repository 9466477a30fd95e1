"""Lessons of one gateway to all others, through the shared store; every few seconds, beside all requests.

Each gateway puts what it noted under its own name and a number, and says which number is its newest. The
others remember how far they have read. A gateway that starts reads what is still there.

Invariants: a batch is read at most once by each gateway; what a gateway left in the store lapses after
`_KEPT_S`, so it is at most `_MOST_KEPT` batches; nothing waits for a store that is down; a call asks for at
most `_AT_ONCE` batches; what lapsed before it was read is missing, and counted.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Collection
from typing import Final

from gateway.domain.lessons import PERIOD_S, Owned, read
from gateway.shared_state.protocol import Entry, Store

_KEPT_S: Final = 120.0
_MOST_KEPT: Final = int(_KEPT_S / PERIOD_S)
_AT_ONCE: Final = 8
"""So that an answer stays small. In a round each peer has an equal share of so many, or two: a gateway that
starts has caught up after some."""
_MAX_PEERS: Final = 1024
_VERSION: Final = b"1"


class Lessons:
    def __init__(self, store: Store, origin: str, peers: Collection[str]) -> None:
        """`origin`: this gateway's name; `peers`: those of the others that live."""
        self._store = store
        self._origin = origin
        self._peers = peers
        self._newest = 0
        self._read: OrderedDict[str, int] = OrderedDict()
        """Of each peer the number of the last batch that was read; the longest unheard first."""
        self.received = self.missed = 0
        """Lessons, and batches."""

    @property
    def may_publish(self) -> bool:
        """While the store is down, what waits to be written would take the room of what sessions need."""
        return self._store.is_up

    def publish(self, batch: bytes) -> None:
        """Nobody waits for it. Nothing is published of an empty batch."""
        if not batch:
            return
        self._newest += 1
        number = b"%d" % self._newest
        self._store.publish(
            [
                Entry(_batch_key(self._origin, self._newest), batch, _KEPT_S),
                Entry(_newest_key(self._origin), number, _KEPT_S),
            ]
        )

    async def receive(self) -> AsyncIterator[list[Owned]]:
        """What the others published since. Raises StoreUnavailable; what was not read then is read later."""
        peers = sorted(self._peers)
        newest = await self._store.find([_newest_key(peer) for peer in peers]) if peers else []
        unread: list[tuple[str, int]] = []
        for peer, value in zip(peers, newest, strict=True):
            if value is not None and value.isdigit() and len(value) < 16:
                unread += self._unread(peer, int(value), max(2, _AT_ONCE // len(peers)))
        for at in range(0, len(unread), _AT_ONCE):
            wanted = unread[at : at + _AT_ONCE]
            batches = await self._store.find([_batch_key(peer, number) for peer, number in wanted])
            for (peer, number), batch in zip(wanted, batches, strict=True):
                self._remember(peer, number)
                if batch is None:
                    self.missed += 1
                    continue
                lessons = read(batch)
                self.received += len(lessons)
                yield lessons

    def _remember(self, peer: str, number: int) -> None:
        self._read[peer] = number
        self._read.move_to_end(peer)
        if len(self._read) > _MAX_PEERS:
            self._read.popitem(last=False)

    def _unread(self, peer: str, newest: int, most: int) -> list[tuple[str, int]]:
        """The next batches of that peer."""
        oldest = max(1, newest - _MOST_KEPT + 1)
        last = self._read.get(peer, oldest - 1)
        if last > newest:  # what stood there once was not its number
            last = oldest - 1
        first = max(oldest, last + 1)
        self.missed += first - (last + 1)
        return [(peer, number) for number in range(first, min(newest, first + most - 1) + 1)]


def _newest_key(origin: str) -> bytes:
    return b"l%s:%s" % (_VERSION, origin.encode("ascii"))


def _batch_key(origin: str, number: int) -> bytes:
    return b"%s:%d" % (_newest_key(origin), number)
