"""How much of the shared store each tenant may take, so that none fills it for the others.

Source: a token bucket of byte-seconds. What stands in a store is what was written times how long it stays, so
`most_bytes` a second refill the bucket, and an entry costs its bytes times its TTL.

Invariants: of a tenant at most twice `most_bytes` stand there, from this gateway, if nothing stays shorter
than `stays_s`; who never took anything costs nothing here; memory is bounded.
"""

from collections.abc import Callable
from typing import Final

from gateway.domain.allowance import Allowance
from gateway.domain.ids import TenantId

_MAX_TENANTS: Final = 10_000


class Allowances:
    def __init__(self, most_bytes: float, *, stays_s: float, now: Callable[[], float]) -> None:
        """`stays_s`: how long most of what is written does; so much may be written at once."""
        self._per_s = most_bytes
        self._limit = most_bytes * stays_s
        self._now = now
        # The one that was taken from longest ago first.
        self._left: dict[TenantId, Allowance] = {}

    def take(self, tenant: TenantId, byte_seconds: float) -> bool:
        allowance = self._left.pop(tenant, None)
        if allowance is None:
            allowance = Allowance(per_s=self._per_s, burst=self._limit)
            if len(self._left) >= _MAX_TENANTS:
                del self._left[next(iter(self._left))]
        self._left[tenant] = allowance
        return allowance.take(byte_seconds, now=self._now())
