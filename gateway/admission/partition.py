"""Several gateways before one pool: what part of it is this one's?

Source: ours. SAGA (§5.2) shares its scheduler's state with a staleness of 100 ms.

Theory of operation. Each gateway says what its sessions hold and who waits, and works out the same parts from
what all of them say; for itself it then acts as if it had a smaller pool. So the parts never add up to more
than the pool, however many sessions come to several gateways at once, but for what was said between two
reports. Where nobody waits, each has what its own sessions may come to hold, and an equal part of the rest.
Where somebody waits, what there is goes to tenants by max-min fairness, as it would at a single gateway, and
what a tenant gets to the gateways by what it asks for there.

Invariants: the parts of all gateways add up to 1; with nobody else, all of the pool is ours.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gateway.admission.tenants.fair_share import FairShare
from gateway.domain.ids import NOBODYS, TenantId
from gateway.domain.shares import PoolShare

LEAST: Final = 0.01
"""Nobody is left with nothing: its next session has to be seen before it can be counted."""
MOST_TOLD: Final = 256
"""Tenants that other gateways are told of by name, those that ask for most; the rest counts as one."""


def share_of(fair: FairShare, *, demand_tokens: float, waiting: int) -> PoolShare:
    """What the other gateways must know of this one's part of a pool. `waiting`: sessions."""
    asked = fair.asked()
    held = {tenant: fair.held(tenant) for tenant in fair.holders}
    if len(asked) > MOST_TOLD:
        most = heapq.nlargest(MOST_TOLD, asked, key=asked.__getitem__)
        asked, held = _by_name(asked, most), _by_name(held, most)
    return PoolShare(demand_tokens=demand_tokens, waiting=waiting, held=held, asked=asked)


def _by_name(sessions: Mapping[TenantId, float], told: Collection[TenantId]) -> dict[TenantId, float]:
    found = {tenant: sessions[tenant] for tenant in told if tenant in sessions}
    return {**found, NOBODYS: sum(sessions.values()) - sum(found.values())}


def part_of(
    own: PoolShare, others: Sequence[PoolShare], *, capacity: float | None, weights: Mapping[TenantId, float]
) -> float:
    """The share of the pool that is this gateway's, 0 to 1. `capacity`: KV tokens of the pool; None if
    unknown."""
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
    asked: dict[TenantId, float] = {}
    for each in every:
        for tenant, sessions in each.asked.items():
            asked[tenant] = asked.get(tenant, 0.0) + sessions
    there = sum(sum(each.held.values()) for each in every)
    if there <= 0 or not asked:
        return 1.0 / len(every)
    given = max_min(asked, min(there, sum(asked.values())), weights)
    ours = sum(given[tenant] * sessions / asked[tenant] for tenant, sessions in own.asked.items() if sessions)
    return ours / sum(given.values())


def max_min(
    asked: Mapping[TenantId, float], there: float, weights: Mapping[TenantId, float]
) -> dict[TenantId, float]:
    """Who asks for less than its share, by weight, gets it; the others share the rest."""
    given: dict[TenantId, float] = {}
    left, weight = there, sum(weights.get(tenant, 1.0) for tenant in asked)
    for tenant in sorted(asked, key=lambda tenant: asked[tenant] / weights.get(tenant, 1.0)):
        own = weights.get(tenant, 1.0)
        given[tenant] = min(asked[tenant], left * own / weight)
        left -= given[tenant]
        weight -= own
    return given
