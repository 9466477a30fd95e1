"""What admission knows of its pools, tenants and sessions, as plain values.

Invariants: nothing that is looked at here changes by it; at most `MAX_TENANTS` tenants are shown.
"""

import math
from collections import Counter
from typing import Final

import msgspec

from gateway.admission.balance_and_admit import PoolAdmission
from gateway.admission.session_admission import SessionAdmission
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.ids import PoolId, ReplicaId, SessionId, TenantId

MAX_TENANTS: Final = 200


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    id: PoolId
    window: float | None
    """Most admitted sessions; None for no limit."""
    kv_budget: float | None
    admitted: int
    waiting: int
    demand: float
    held: float
    gpu_pressure: float
    cpu_pressure: float
    updates: tuple[WindowUpdated, ...] = ()
    """The newest, oldest first."""


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    id: TenantId
    pool: PoolId
    weight: float
    admitted: int
    lately: float
    """Mean number of admitted sessions over the last half hour or so; it counts as much as the present
    number."""
    waiting: int
    """Sessions."""


class MemberView(msgspec.Struct, frozen=True):
    service_class: str
    replica: ReplicaId | None


class Members:
    """Sessions as admission knows them, in any pool."""

    def __init__(self, pools: list[PoolAdmission]) -> None:
        self._pools = pools

    def get(self, session: SessionId) -> MemberView | None:
        for pool in self._pools:
            member = pool.places.members.get(session)
            if member is not None:
                return MemberView(member.service_class.value, member.replica)
        return None


def view_members(admission: SessionAdmission) -> Members:
    return Members(list(admission.pools.values()))


def view_pools(admission: SessionAdmission) -> tuple[PoolView, ...]:
    return tuple(_view_pool(name, pool) for name, pool in admission.pools.items())


def view_tenants(admission: SessionAdmission) -> tuple[TenantView, ...]:
    views = [each for name, pool in admission.pools.items() for each in _tenants(name, pool)]
    views.sort(key=lambda view: (-view.admitted, -view.waiting, view.id))
    return tuple(views[:MAX_TENANTS])


def _view_pool(name: PoolId, pool: PoolAdmission) -> PoolView:
    limit, budget, seen = pool.window.sessions, pool.window.budget, pool.limits.seen
    return PoolView(
        id=name,
        window=limit if math.isfinite(limit) else None,
        kv_budget=budget if math.isfinite(budget) else None,
        admitted=pool.places.count,
        waiting=len(pool.queue),
        demand=seen.demand if seen is not None else 0.0,
        held=max(0.0, pool.places.tokens),
        gpu_pressure=seen.gpu.pressure if seen is not None else 0.0,
        cpu_pressure=seen.cpu.pressure if seen is not None else 0.0,
    )


def _tenants(name: PoolId, pool: PoolAdmission) -> list[TenantView]:
    waiting: Counter[TenantId] = Counter()
    for session in pool.held:
        if (member := pool.places.members.get(session)) is not None:
            waiting[member.tenant] += 1
    return [
        TenantView(
            id=tenant,
            pool=name,
            weight=pool.fair.weight(tenant),
            admitted=pool.places.sessions_of(tenant),
            lately=pool.fair.lately.get(tenant, 0.0),
            waiting=waiting[tenant],
        )
        for tenant in {**pool.places.by_tenant, **waiting}
    ]
