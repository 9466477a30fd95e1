"""The network between replicas: KV caches go over it, and share it fairly.

Each replica has one network card that sends and receives at its full rate at once. Transfers share the cards
that they pass max-min fairly, as flows of one congestion control do: the card with the least for each flow
gives each of its flows that much, then the next one shares what it has left. The switch between them is never
the limit.

Invariants: no card carries more than its rate; whenever a transfer could be faster, another one that passes
the same card would have to be slower; a transfer ends once, by its end or by being called off.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from gateway.domain.ids import ReplicaId
from lab.simulator.kernel import Alarm, Kernel

_Card = tuple[ReplicaId, bool]
"""A replica's, as it sends (true) or receives."""


class Transfer(msgspec.Struct, eq=False):
    source: ReplicaId
    target: ReplicaId
    left_bytes: float
    done: Callable[[], None]
    rate: float = 0.0
    """Bytes a second."""

    @property
    def cards(self) -> tuple[_Card, ...]:
        return (self.source, True), (self.target, False)


class Network:
    def __init__(self, bytes_per_s: Mapping[ReplicaId, float], *, latency_s: float, kernel: Kernel) -> None:
        """`bytes_per_s`: of each replica's card, each way; `latency_s`: before each transfer's first byte."""
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._kernel = kernel
        self._under_way: dict[Transfer, None] = {}
        self._starting: dict[Transfer, Alarm] = {}
        self._seen_s = 0.0
        """Up to when `left_bytes` is carried forward."""
        self._next: Alarm | None = None
        self.carried_bytes = 0.0

    def send(self, source: ReplicaId, target: ReplicaId, size: float, done: Callable[[], None]) -> Transfer:
        """`done` is called when the last byte is there, behind whatever else happens at that time."""
        transfer = Transfer(source, target, size, done)
        self._starting[transfer] = self._kernel.after(self._latency_s, self._begin, transfer)
        return transfer

    def call_off(self, transfer: Transfer) -> None:
        """Unless it has ended: `done` is not called."""
        alarm = self._starting.pop(transfer, None)
        if alarm is not None:
            alarm.call_off()
        elif transfer in self._under_way:
            self._pass_time()
            del self._under_way[transfer]
            self._share()

    def _begin(self, transfer: Transfer) -> None:
        del self._starting[transfer]
        self._pass_time()
        self._under_way[transfer] = None
        self._share()

    def _pass_time(self) -> None:
        passed_s, self._seen_s = self._kernel.now - self._seen_s, self._kernel.now
        for transfer in self._under_way:
            moved = min(transfer.left_bytes, transfer.rate * passed_s)
            transfer.left_bytes -= moved
            self.carried_bytes += moved

    def _share(self) -> None:
        """Anew, with whoever is under way now; and says when the first of them ends."""
        rates = fair_rates(self._under_way, self._bytes_per_s)
        for transfer, rate in rates.items():
            transfer.rate = rate
        if self._next is not None:
            self._next.call_off()
        ends_s = [each.left_bytes / each.rate for each in self._under_way]
        self._next = self._kernel.after(min(ends_s), self._ended) if ends_s else None

    def _ended(self) -> None:
        """At least one of them, but for rounding."""
        self._pass_time()
        over = [each for each in self._under_way if each.left_bytes <= 1.0]
        if not over:
            over = [min(self._under_way, key=lambda each: each.left_bytes / each.rate)]
        for transfer in over:
            del self._under_way[transfer]
        self._share()
        for transfer in over:
            transfer.done()


def fair_rates(
    transfers: Iterable[Transfer], bytes_per_s: Mapping[ReplicaId, float]
) -> dict[Transfer, float]:
    """Max-min fair, in bytes a second."""
    rates: dict[Transfer, float] = {}
    passing: dict[_Card, list[Transfer]] = {}
    for transfer in transfers:
        for card in transfer.cards:
            passing.setdefault(card, []).append(transfer)
    free = {card: bytes_per_s[card[0]] for card in passing}
    while passing:
        card = min(passing, key=lambda each: free[each] / len(passing[each]))
        share = free[card] / len(passing[card])
        for transfer in tuple(passing[card]):
            rates[transfer] = share
            for each in transfer.cards:
                free[each] -= share
                passing[each].remove(transfer)
                if not passing[each]:
                    del passing[each]
    return rates
