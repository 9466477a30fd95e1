"""Several gateways before one pool: which part of it is this gateway's?

Source: ours. SAGA (§5.2) shares its scheduler's state with a staleness of 100 ms.

Theory of operation. Each gateway reports its sessions' demand and its queue, and computes the same parts from
all reports; it then acts as if its pool was smaller. So between reports the parts never exceed the pool,
whatever arrives at several gateways at once. Without queues each gateway has its own sessions' demand, and an
equal part of the rest. With queues the places go to tenants by max-min fairness, as at a single gateway, and
a tenant's places to the gateways by its demand there.

Invariants: the parts of all gateways add up to 1; a single gateway has the whole pool.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gateway.admission.tenants.fair_share import FairShare
from gateway.domain.ids import NOBODYS, TenantId
from gateway.domain.shares import PoolShare

# No gateway has nothing: its next session has to arrive before it counts.
LEAST: Final = 0.01
# Tenants in a report, those with the most demand; the rest counts as one.
MAX_NAMED: Final = 256


def share_of(fair: FairShare, *, demand_tokens: float, waiting: int) -> PoolShare:
    """This gateway's report. `waiting`: sessions."""
    demand, held = fair.demand(), dict(fair.held)
    if len(demand) > MAX_NAMED:
        most = heapq.nlargest(MAX_NAMED, demand, key=demand.__getitem__)
        demand, held = _by_name(demand, most), _by_name(held, most)
    return PoolShare(demand_tokens=demand_tokens, waiting=waiting, held=held, wanted=demand)


def _by_name(sessions: Mapping[TenantId, float], named: Collection[TenantId]) -> dict[TenantId, float]:
    found = {tenant: sessions[tenant] for tenant in named if tenant in sessions}
    return {**found, NOBODYS: sum(sessions.values()) - sum(found.values())}


def part_of(
    own: PoolShare, others: Sequence[PoolShare], *, capacity: float | None, weights: Mapping[TenantId, float]
) -> float:
    """This gateway's share of the pool, 0 to 1. `capacity`: KV tokens of the pool."""
    if not others:
        return 1.0
    every = (own, *others)
    if any(each.waiting for each in every):
        part = _fair_part(own, every, weights)
    else:
        part = _part_of_what_is_free(own, every, capacity)
    return max(LEAST, min(1.0, part))


def _part_of_what_is_free(own: PoolShare, every: Sequence[PoolShare], capacity: float | None) -> float:
    if not capacity:
        return 1.0 / len(every)
    demand = sum(each.demand_tokens for each in every)
    if demand >= capacity:
        return own.demand_tokens / demand
    return (own.demand_tokens + (capacity - demand) / len(every)) / capacity


def _fair_part(own: PoolShare, every: Sequence[PoolShare], weights: Mapping[TenantId, float]) -> float:
    demand: dict[TenantId, float] = {}
    for each in every:
        for tenant, sessions in each.wanted.items():
            demand[tenant] = demand.get(tenant, 0.0) + sessions
    there = sum(sum(each.held.values()) for each in every)
    if there <= 0 or not demand:
        return 1.0 / len(every)
    given = max_min(demand, min(there, sum(demand.values())), weights)
    ours = sum(
        given[tenant] * sessions / demand[tenant] for tenant, sessions in own.wanted.items() if sessions
    )
    return ours / sum(given.values())


def max_min(
    demand: Mapping[TenantId, float], there: float, weights: Mapping[TenantId, float]
) -> dict[TenantId, float]:
    """Demand below a weighted share is met; the others share the rest."""
    given: dict[TenantId, float] = {}
    left, weight = there, sum(weights.get(tenant, 1.0) for tenant in demand)
    for tenant in sorted(demand, key=lambda tenant: demand[tenant] / weights.get(tenant, 1.0)):
        own = weights.get(tenant, 1.0)
        given[tenant] = min(demand[tenant], left * own / weight)
        left -= given[tenant]
        weight -= own
    return given
