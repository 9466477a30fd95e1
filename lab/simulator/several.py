"""Several gateways before one simulated fleet, as one brain for the driver.

Each session is one gateway's; what each says of its sessions reaches the others every `period_s`, which is
also how old it may be. Engines, hosts and operators tell all of them the same.
"""

import math
from collections.abc import Callable, Sequence
from hashlib import blake2s

from gateway.core import events as ev
from gateway.core.commands import Command
from gateway.core.coordinator import Coordinator
from gateway.core.turns.live import LiveRequest
from gateway.domain.ids import RequestId


class SeveralGateways:
    def __init__(self, count: int, make: Callable[[int], Coordinator], *, period_s: float = 0.1) -> None:
        """`make`: a brain, by its number; the names that two of them give to sessions must differ.
        `period_s`: infinite if they know nothing of one another."""
        self._brains = [make(number) for number in range(count)]
        self._period_s = period_s
        self._exchange_s: float | None = None if math.isfinite(period_s) else math.inf
        self._of: dict[RequestId, Coordinator] = {}

    @property
    def live(self) -> dict[RequestId, LiveRequest]:
        return {request: live for brain in self._brains for request, live in brain.live.items()}

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        commands: list[Command] = []
        if self._exchange_s is None or now >= self._exchange_s:
            self._exchange_s = now + self._period_s
            shares = [brain.share() for brain in self._brains]
            for at, brain in enumerate(self._brains):
                told = ev.SharesReceived((*shares[:at], *shares[at + 1 :]))
                commands += brain.handle(told, now=now)
        for brain in self._told(event):
            commands += brain.handle(event, now=now)
        return commands

    def _told(self, event: ev.Event) -> Sequence[Coordinator]:
        if isinstance(event, ev.RequestArrived):
            stated = event.facts.explicit
            name = stated.session if stated is not None else event.tenant
            digest = blake2s(f"{event.tenant} {name}".encode(), digest_size=4).digest()
            owner = self._brains[int.from_bytes(digest, "big") % len(self._brains)]
            self._of[event.request] = owner
            return (owner,)
        if isinstance(event, ev.RequestEvent):
            return (self._of[event.request],)
        if isinstance(event, ev.PrefillEnded):
            return (self._of[event.turn],)
        return self._brains

    def next_deadline_s(self) -> float | None:
        due = [at_s for brain in self._brains if (at_s := brain.next_deadline_s()) is not None]
        if self.live and self._exchange_s is not None and math.isfinite(self._exchange_s):
            due.append(self._exchange_s)
        return min(due, default=None)
