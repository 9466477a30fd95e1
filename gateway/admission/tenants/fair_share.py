"""Fair share: which tenant is next?

Source: SAGA (Agent Fair Share), §6.1 Eq. 8 and §6.2.

Symbols: the usage of Eq. 8 → `charge`; *epoch* → `EPOCH_S`; *blocks for more than 500 ms* → `BLOCKED_S`.

Deviations: Eq. 8 as printed rewards a tenant for opening more tasks, and diverges at a deadline. Ours divides
what a tenant holds, now and lately (`charge`), by its weight. Urgency (Eq. 9) is not
built: at most doubling a weight, it was worth nothing (ten paired seeds, docs/papers.md). SAGA preempts what
blocks; we never do: work of a tenant that holds more than its share is held back at its next turn
(`should_yield`), at most one session an epoch.

Recent use is ours; that what somebody left to others counts for them later is the idea of Karma (OSDI 2023),
and that service already had counts that of virtual token counters (OSDI 2024). Karma lends and gives back
credits, without end. Here the past fades (`LATELY_S`), so whoever flooded the fleet is like all others after
a while, and nobody can save up for more than that.

Theory of operation. If who holds least now was next, a tenant that asks for a lot for hours, and one that
asks for a lot once, would be treated alike while both do, and the latter's few sessions would wait behind the
former's thousands. That is fair at each moment, and to nobody who looks back. So half of what counts is what
a tenant held lately on average. What it held while nobody else was there was in nobody's way, and does not
count.

Invariants: with equal weights the tenant that holds least, now and lately, is next; a session is held back
only for a tenant that stays below its share with it, by one that stays above without it; recent use is never
more than the most that a tenant held, and that of at most `_REMEMBERED` tenants, those that held most.
"""

import heapq
import math
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.ids import TenantId

EPOCH_S: Final = 0.1
"""§6.2: how often queues are looked at anew."""
BLOCKED_S: Final = 0.5
"""§6.2 (4)."""
SHARE_GRACE: Final = 1.5
"""So many times its share nobody has to give back, whoever is late."""
_MUCH: Final = 0.5
"""Of what the one asks for that asks for most."""
LATELY_S: Final = 1_800.0
"""A time constant: what was held so long ago counts for a third."""
_EVERY_S: Final = 5.0
_LEAST: Final = 0.01
"""Sessions: less is forgotten."""
_REMEMBERED: Final = 4_096


class FairShareConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    alpha: Annotated[float, Meta(gt=1)] = 1.5
    """A turn should take at most so many times what it would take alone. Where those of tenants within their
    share use up over half of that, whoever holds far more than its own holds less."""


class FairShare:
    def __init__(self, weights: dict[TenantId, float] | None = None) -> None:
        self.weights = weights if weights is not None else {}
        self._held: dict[TenantId, float] = {}
        self.waiting: dict[TenantId, int] = {}
        """Sessions. To be read only."""
        self._lately: dict[TenantId, float] = {}
        self._looked_s: float | None = None
        self._all_held = self._all_recent = self._weight_there = 0.0
        """The latter two: of those who hold something or wait."""
        self._most_asked = 0.0
        """By those who hold something, for a weight of 1, when it was looked at last."""

    def weight(self, tenant: TenantId) -> float:
        return self.weights.get(tenant, 1.0)

    def weights_changed(self) -> None:
        there = self._held.keys() | self.waiting.keys()
        self._weight_there = sum(map(self.weight, there))

    def hold(self, tenant: TenantId, amount: float) -> None:
        """The tenant holds so much more (or, negative, less) of the pool."""
        was_there = self._is_there(tenant)
        before = self._held.pop(tenant, 0.0)
        held = before + amount
        if held > 1e-9:
            self._held[tenant] = held
        self._all_held += self.held(tenant) - before
        self._count(tenant, was_there)

    def wait(self, tenant: TenantId, sessions: int) -> None:
        """So many more of its sessions (or, negative, fewer) wait for a place."""
        was_there = self._is_there(tenant)
        self.waiting[tenant] = self.waiting.get(tenant, 0) + sessions
        if not self.waiting[tenant]:
            del self.waiting[tenant]
        self._count(tenant, was_there)

    def _is_there(self, tenant: TenantId) -> bool:
        return tenant in self._held or tenant in self.waiting

    def _count(self, tenant: TenantId, was_there: bool) -> None:
        came = self._is_there(tenant) - was_there
        self._weight_there += came * self.weight(tenant)
        self._all_recent += came * self.held_lately(tenant)
        if not self._held and not self.waiting:
            self._all_held = self._all_recent = self._weight_there = 0.0  # what rounding left of them

    def pass_time(self, *, now: float) -> None:
        """To be called about once a second."""
        self._most_asked = max(map(self._asks, self._held), default=0.0)
        if self._looked_s is None:
            self._looked_s = now
        passed_s = now - self._looked_s
        if passed_s < _EVERY_S:
            return
        self._looked_s = now
        some = self._held.keys() | islice(self.waiting, 2)
        held = self._held if len(some) > 1 else {}
        keep = math.exp(-passed_s / LATELY_S)
        lately = {
            tenant: keep * self.held_lately(tenant) + (1.0 - keep) * held.get(tenant, 0.0)
            for tenant in self._lately.keys() | held.keys()
        }
        lately = {tenant: each for tenant, each in lately.items() if each >= _LEAST or tenant in held}
        if len(lately) > _REMEMBERED:
            lately = dict(heapq.nlargest(_REMEMBERED, lately.items(), key=lambda item: item[1]))
        self._lately = lately
        self._all_recent = sum(each for tenant, each in lately.items() if self._is_there(tenant))

    def charge(self, tenant: TenantId, more: float = 0.0) -> float:
        return 0.5 * (self._held.get(tenant, 0.0) + more + self._lately.get(tenant, 0.0))

    def held(self, tenant: TenantId) -> float:
        return self._held.get(tenant, 0.0)

    def asked(self) -> dict[TenantId, float]:
        there = self._held.keys() | self.waiting.keys()
        return {tenant: self.held(tenant) + self.waiting.get(tenant, 0) for tenant in there}

    def held_lately(self, tenant: TenantId) -> float:
        return self._lately.get(tenant, 0.0)

    @property
    def holders(self) -> Iterable[TenantId]:
        return self._held.keys()

    def rank(self, tenant: TenantId) -> tuple[float, float]:
        weight = self.weight(tenant)
        return self.charge(tenant) / weight, -weight

    def holds_too_much(self, tenant: TenantId) -> bool:
        """Whether it is beyond its share of what all of them hold, even with a session less. Nobody is where
        nobody else is, or wants to be."""
        return self.charge(tenant, -1.0) >= self.weight(tenant) * self.share

    @property
    def share(self) -> float:
        """What everybody there would be charged if all held alike, for a weight of 1."""
        charged = 0.5 * (self._all_held + self._all_recent)
        return charged / self._weight_there if self._weight_there else 0.0

    @property
    def most_charged(self) -> float:
        """For a weight of 1, of those who hold something and ask for much."""
        much = filter(self.is_heavy, self._held)
        return max((self.charge(each) / self.weight(each) for each in much), default=0.0)

    def is_heavy(self, tenant: TenantId) -> bool:
        return self._asks(tenant) >= _MUCH * self._most_asked

    def _asks(self, tenant: TenantId) -> float:
        return (self.held(tenant) + self.waiting.get(tenant, 0)) / self.weight(tenant)

    def is_far_beyond(self, charge: float) -> bool:
        """Such a charge, for a weight of 1: what everybody's share is."""
        return charge >= max(self.share + 0.5, SHARE_GRACE * self.share)

    def should_yield(self, blocked: TenantId, holder: TenantId) -> bool:
        """Whether the holder's next turn waits, so that the blocked tenant can have its place.

        To be asked once the blocked one has waited `BLOCKED_S`.
        """
        gets = self.charge(blocked, 1.0) / self.weight(blocked)
        keeps = self.charge(holder, -1.0) / self.weight(holder)
        return holder != blocked and gets <= keeps
