"""Recent use: what did each tenant hold lately?

Source: ours; that what somebody left to others counts for them later is the idea of Karma (OSDI 2023), and
that service already had counts that of virtual token counters (OSDI 2024).

Deviations: Karma lends and gives back credits, without end. Here the past fades (`LATELY_S`), so whoever
flooded the fleet is like all others after a while, and nobody can save up for more than that.

Theory of operation. Who holds least now is next: so a tenant that asks for a lot for hours, and one that asks
for a lot once, are treated alike while both do, and the latter's few sessions wait behind the former's
thousands. That is fair at each moment, and to nobody who looks back. So half of what counts is what a tenant
held lately on average (`FairShare.charge`). What it held while nobody else was there was in nobody's way, and
does not count.

Invariants: never more than the most that a tenant held; at most `_REMEMBERED` tenants, those that held most.
"""

import heapq
import math
from collections.abc import Iterator, Mapping
from typing import Final

from gateway.domain.ids import TenantId

LATELY_S: Final = 1_800.0
"""A time constant: what was held so long ago counts for a third."""
_EVERY_S: Final = 5.0
_LEAST: Final = 0.01
"""Sessions: less is forgotten."""
_REMEMBERED: Final = 4_096


class RecentUse:
    def __init__(self) -> None:
        self._average: dict[TenantId, float] = {}
        self._looked_s: float | None = None

    def __len__(self) -> int:
        return len(self._average)

    def __iter__(self) -> Iterator[TenantId]:
        return iter(self._average)

    def of(self, tenant: TenantId) -> float:
        return self._average.get(tenant, 0.0)

    def pass_time(self, held: Mapping[TenantId, float], *, now: float) -> bool:
        """`held`: by each tenant, since this was last called, as far as it counts. Whether anything changed;
        it does every few seconds."""
        if self._looked_s is None:
            self._looked_s = now
        passed_s = now - self._looked_s
        if passed_s < _EVERY_S:
            return False
        self._looked_s = now
        keep = math.exp(-passed_s / LATELY_S)
        average = {
            tenant: keep * self.of(tenant) + (1.0 - keep) * held.get(tenant, 0.0)
            for tenant in self._average.keys() | held.keys()
        }
        self._average = {tenant: each for tenant, each in average.items() if each >= _LEAST or tenant in held}
        if len(self._average) > _REMEMBERED:
            self._average = dict(heapq.nlargest(_REMEMBERED, self._average.items(), key=lambda item: item[1]))
        return True
