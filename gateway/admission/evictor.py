"""Eviction: which sessions give their places back?

Source: SAGA (§6.2 (4)): work that blocks others gives way. ThunderAgent (arXiv 2602.13692): when programs do
not fit, the smallest pause whose tools run.

Deviations: SAGA preempts. Here a live turn runs on, and its session waits at the next one.

Theory. Where memory is short, the sessions without a live turn go first, the smallest of them first: their
return costs the least prefill, and the cache that they leave is what the others lack. Where a tenant holds
too much, or tools are overloaded, the newest go: the smallest would return at once, and the large never end.

Invariants: the next to go is of the tenant with the most places for its weight, or tokens where the cache
would overflow; sessions already marked count as gone; late turns of others leave a tenant at least
`SHARE_GRACE` times its share.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from gateway.admission.cpu_pressure import CpuPressure
from gateway.admission.limits import Excess, Limits
from gateway.admission.sessions import Member, Places
from gateway.admission.tenants.fair_share import SHARE_GRACE, FairShare
from gateway.admission.tenants.promises import LATE
from gateway.domain.ids import TenantId


def _places(member: Member) -> float:
    return member.places


def _tokens(member: Member) -> float:
    return member.demand[0]


class Evictor:
    def __init__(
        self, places: Places, fair: FairShare, limits: Limits, cpu: CpuPressure, release: Callable[..., None]
    ) -> None:
        self._places = places
        self._fair = fair
        self._limits = limits
        self._cpu = cpu
        self._release = release
        # A tenant holds far more than its share.
        self.is_one_above = False

    def give_way(self, excess: Excess, *, now: float) -> None:
        members = self._places.in_places()
        if excess.is_of_tools:
            members = [each for each in members if not self._cpu.is_light(each.agent)]
        by = _arrival if excess.is_of_tools else _cost_of_return
        size = _tokens if excess.is_in_tokens else _places
        self._evict(members, excess.amount, excess.why, by=by, size=size, now=now)

    def keep_promises(self, *, waiting: int, now: float) -> None:
        """Call about once a second."""
        fair, limits = self._fair, self._limits
        fair.pass_time(now=now)
        most = fair.most_charged
        self.is_one_above = fair.is_far_beyond(most)
        reason = limits.promises.update(
            most,
            is_far_beyond=self.is_one_above,
            least=SHARE_GRACE * fair.share,
            are_waiting=waiting > 0,
            fill=limits.kv_pressure(),
            feedback_s=limits.window.feedback_s,
            now=now,
        )
        if reason is not None:
            limits.record_change(reason, waiting=waiting, now=now)
        if reason == LATE:
            self.for_the_late(now=now)

    def level(self, tenant: TenantId) -> float:
        """What the tenant may be charged by promises to others."""
        level = self._limits.promises.level
        if math.isinf(level) or not self._fair.is_heavy(tenant):
            return math.inf
        return self._fair.weight(tenant) * max(level, SHARE_GRACE * self._fair.share)

    def for_the_blocked(self, blocked: TenantId, *, now: float) -> None:
        holder = max(self._places.by_tenant, key=lambda tenant: self._fair.rank(tenant)[0], default=None)
        if holder is None or not self._fair.should_yield(blocked, holder):
            return
        of_holder = self._places.by_tenant[holder].values()
        if not any(member.eviction_reason for member in of_holder):
            self._evict(of_holder, 1.0, "fair_share", by=_arrival, now=now)

    def for_the_late(self, *, now: float) -> None:
        for tenant in tuple(self._fair.held):
            of_tenant = self._places.by_tenant.get(tenant, {}).values()
            staying = [each for each in of_tenant if not each.eviction_reason]
            leaving = self._fair.held[tenant] - sum(each.places for each in staying)
            beyond = 2.0 * (self._fair.charge(tenant, -leaving) - self.level(tenant))
            self._evict(staying, int(max(0.0, beyond)), LATE, by=_arrival, now=now)

    def _evict(
        self,
        members: Iterable[Member],
        amount: float,
        why: str,
        *,
        by: Callable[[Member], Any],
        size: Callable[[Member], float] = _places,
        now: float,
    ) -> None:
        """Of each tenant the last in this order first."""
        by_tenant: dict[TenantId, list[Member]] = {}
        held: dict[TenantId, float] = {}
        for member in sorted(members, key=by):
            if not member.eviction_reason:
                by_tenant.setdefault(member.tenant, []).append(member)
                held[member.tenant] = held.get(member.tenant, 0.0) + size(member)
        while amount > 0 and by_tenant:
            tenant = max(by_tenant, key=lambda each: held[each] / self._fair.weight(each))
            member = by_tenant[tenant].pop()
            amount -= size(member)
            held[tenant] -= size(member)
            if not by_tenant[tenant]:
                del by_tenant[tenant]
            member.eviction_reason = why
            if member.live:
                self._places.marked[member.session] = member
            else:
                self._release(member, now=now)


def _arrival(member: Member) -> float:
    return member.task_arrived_s


def _cost_of_return(member: Member) -> tuple[bool, float]:
    """The most first: live turns, then the largest prefill."""
    return not member.live, -member.tokens
