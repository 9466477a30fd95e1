"""Fair share: which tenant is next?

Source: SAGA (Agent Fair Share), §6.1 Eq. 8 and §6.2.

Symbols: the usage of Eq. 8 → `charge`; *blocks for more than 500 ms* → `BLOCKED_S`.

Deviations: Eq. 8 as printed rewards a tenant for opening more tasks, and diverges at a deadline. Ours divides
a tenant's places, now and lately (`charge`), by its weight. Urgency (Eq. 9) is not built: at most doubling a
weight, it was worth nothing (ten paired seeds, docs/papers.md). SAGA preempts; here a tenant above its share
gives places back at its sessions' next turns (`should_yield`), at most one session an epoch.

Recent use is ours. Karma (OSDI 2023) credits a tenant for what it left to others, without end; virtual token
counters (OSDI 2024) charge service already received. Here the past fades (`LATELY_S`), so a flood is forgiven
after a while, and no tenant can save up for more than that.

Theory of operation. By present places alone, a tenant with thousands of sessions for hours, and one with a
few sessions once, would be equal while both have demand. So half of the charge is the recent mean of places.
Use of an otherwise idle fleet does not count.

Invariants: with equal weights the tenant with the fewest places, now and lately, is next; a session yields
only to a tenant that stays below its share with it, from one that stays above without it; recent use never
exceeds a tenant's largest number of places, and is kept for the `_REMEMBERED` tenants with the most.
"""

import heapq
import math
from itertools import islice
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.ids import TenantId

# §6.2.
EPOCH_S: Final = 0.1
# §6.2 (4).
BLOCKED_S: Final = 0.5
# So many times its share is safe.
SHARE_GRACE: Final = 1.5
# Of the largest demand.
_MUCH: Final = 0.5
# A time constant.
LATELY_S: Final = 1_800.0
_EVERY_S: Final = 5.0
# Sessions: less is forgotten.
_LEAST: Final = 0.01
_REMEMBERED: Final = 4_096


class FairShareConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    alpha: Annotated[float, Meta(gt=1)] = 1.5
    """A turn should take at most so many times its time alone. Where tenants within their share exceed half
    of that allowance, tenants far above their share have to hold less."""


class FairShare:
    def __init__(self, weights: dict[TenantId, float] | None = None) -> None:
        self.weights = weights if weights is not None else {}
        # Places, of those that hold any. Read only, like the next two.
        self.held: dict[TenantId, float] = {}
        # Sessions.
        self.waiting: dict[TenantId, int] = {}
        # The recent mean of places.
        self.lately: dict[TenantId, float] = {}
        self._looked_s: float | None = None
        # The latter two: of tenants that hold something or wait.
        self._all_held = self._all_recent = self._weight_there = 0.0
        # Of tenants that hold something, for a weight of 1.
        self._max_demand = 0.0

    def weight(self, tenant: TenantId) -> float:
        return self.weights.get(tenant, 1.0)

    def weights_changed(self) -> None:
        self._weight_there = sum(map(self.weight, self.held.keys() | self.waiting.keys()))

    def hold(self, tenant: TenantId, amount: float) -> None:
        before = self.held.pop(tenant, 0.0)
        if (held := before + amount) > 1e-9:
            self.held[tenant] = held
        self._all_held += self.held.get(tenant, 0.0) - before
        self._count(tenant, before > 0.0 or tenant in self.waiting)

    def wait(self, tenant: TenantId, sessions: int) -> None:
        before = self.waiting.get(tenant, 0)
        self.waiting[tenant] = before + sessions
        if not self.waiting[tenant]:
            del self.waiting[tenant]
        self._count(tenant, before > 0 or tenant in self.held)

    def _count(self, tenant: TenantId, was_there: bool) -> None:
        came = (tenant in self.held or tenant in self.waiting) - was_there
        self._weight_there += came * self.weights.get(tenant, 1.0)
        self._all_recent += came * self.lately.get(tenant, 0.0)
        if not self.held and not self.waiting:
            self._all_held = self._all_recent = self._weight_there = 0.0  # what rounding left of them

    def pass_time(self, *, now: float) -> None:
        """Call about once a second."""
        self._max_demand = max(map(self._demand, self.held), default=0.0)
        if self._looked_s is None:
            self._looked_s = now
        passed_s = now - self._looked_s
        if passed_s < _EVERY_S:
            return
        self._looked_s = now
        some = self.held.keys() | islice(self.waiting, 2)
        held = self.held if len(some) > 1 else {}
        keep = math.exp(-passed_s / LATELY_S)
        lately = {
            tenant: keep * self.lately.get(tenant, 0.0) + (1.0 - keep) * held.get(tenant, 0.0)
            for tenant in self.lately.keys() | held.keys()
        }
        lately = {tenant: each for tenant, each in lately.items() if each >= _LEAST or tenant in held}
        if len(lately) > _REMEMBERED:
            lately = dict(heapq.nlargest(_REMEMBERED, lately.items(), key=lambda item: item[1]))
        self.lately = lately
        there = self.held.keys() | self.waiting.keys()
        self._all_recent = sum(each for tenant, each in lately.items() if tenant in there)

    def charge(self, tenant: TenantId, more: float = 0.0) -> float:
        return 0.5 * (self.held.get(tenant, 0.0) + more + self.lately.get(tenant, 0.0))

    def demand(self) -> dict[TenantId, float]:
        there = self.held.keys() | self.waiting.keys()
        return {tenant: self.held.get(tenant, 0.0) + self.waiting.get(tenant, 0) for tenant in there}

    def rank(self, tenant: TenantId) -> tuple[float, float]:
        weight = self.weight(tenant)
        return self.charge(tenant) / weight, -weight

    def holds_too_much(self, tenant: TenantId) -> bool:
        """Whether it is above its share even with a session less; never true of a single tenant."""
        return self.charge(tenant, -1.0) >= self.weight(tenant) * self.share

    @property
    def share(self) -> float:
        """The equal charge, for a weight of 1."""
        charged = 0.5 * (self._all_held + self._all_recent)
        return charged / self._weight_there if self._weight_there else 0.0

    @property
    def most_charged(self) -> float:
        """For a weight of 1, of heavy tenants."""
        much = filter(self.is_heavy, self.held)
        return max((self.charge(each) / self.weight(each) for each in much), default=0.0)

    def is_heavy(self, tenant: TenantId) -> bool:
        return self._demand(tenant) >= _MUCH * self._max_demand

    def _demand(self, tenant: TenantId) -> float:
        return (self.held.get(tenant, 0.0) + self.waiting.get(tenant, 0)) / self.weight(tenant)

    def is_far_beyond(self, charge: float) -> bool:
        """`charge`: for a weight of 1."""
        return charge >= max(self.share + 0.5, SHARE_GRACE * self.share)

    def should_yield(self, blocked: TenantId, holder: TenantId) -> bool:
        """Whether the holder gives a place to the tenant that was blocked for `BLOCKED_S`."""
        gets = self.charge(blocked, 1.0) / self.weight(blocked)
        keeps = self.charge(holder, -1.0) / self.weight(holder)
        return holder != blocked and gets <= keeps
