"""Quotas: how much may a tenant have on an idle fleet?

Invariants: a quota is checked and charged in one step, so two requests never both get the last of it; a
request's expected tokens are charged, and corrected by its usage; the bucket holds at most a minute's tokens.
"""

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.domain.ids import TenantId


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None: no limit."""

    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """Scheduling weight among competing tenants."""
    max_sessions: Annotated[int, Meta(ge=1)] | None = None
    """Most admitted sessions, in each pool."""
    tokens_per_minute: Annotated[int, Meta(ge=1)] | None = None
    """Prompt and output tokens, cached ones included."""
    service_class: Literal["interactive", "background"] | None = None
    """Class of its sessions, unless a trusted request states another."""

    @property
    def is_limited(self) -> bool:
        return self.max_sessions is not None or self.tokens_per_minute is not None


class Quotas:
    def __init__(self, quotas: dict[TenantId, Quota]) -> None:
        self._quotas = quotas
        # The remaining tokens at a time, for tenants with a quota.
        self._tokens: dict[TenantId, tuple[float, float]] = {}

    def set(self, quotas: dict[TenantId, Quota]) -> None:
        self._quotas = quotas
        for tenant in self._tokens.keys() - quotas.keys():
            del self._tokens[tenant]

    def may_hold(self, tenant: TenantId, sessions: int) -> bool:
        quota = self._quotas.get(tenant)
        return quota is None or quota.max_sessions is None or sessions < quota.max_sessions

    def per_minute(self, tenant: TenantId) -> int | None:
        quota = self._quotas.get(tenant)
        return quota.tokens_per_minute if quota is not None else None

    def charge(self, tenant: TenantId, tokens: float, *, now: float) -> float:
        """Takes tokens and returns 0, or takes none and returns the seconds to wait. A request beyond a
        minute's tokens takes a full bucket, and pays back over time."""
        if (per_minute := self.per_minute(tenant)) is None:
            return 0.0
        left = self._left(tenant, per_minute, now=now)
        needed = min(tokens, float(per_minute))
        if left < needed:
            return (needed - left) * 60.0 / per_minute
        self._tokens[tenant] = (left - tokens, now)
        return 0.0

    def correct(self, tenant: TenantId, charged: float, used: float, *, now: float) -> None:
        if (per_minute := self.per_minute(tenant)) is not None:
            left = self._left(tenant, per_minute, now=now)
            self._tokens[tenant] = (min(left + charged - used, per_minute), now)

    def _left(self, tenant: TenantId, per_minute: int, *, now: float) -> float:
        left, at_s = self._tokens.get(tenant, (float(per_minute), now))
        return min(float(per_minute), left + (now - at_s) * per_minute / 60.0)


def retry_after_s(wait_s: float, number: int, *, most: int = 30) -> int:
    """Successive refusals get distinct times, since clients obey `retry-after` to the millisecond; some
    ignore a minute and more, so at most `most`."""
    soonest = max(1, min(most, math.ceil(wait_s)))
    return soonest + number % (most - soonest + 1)
