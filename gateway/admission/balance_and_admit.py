"""Who of those that wait enters next, and what keeps the others out.

Source: MARS (§4.2), BalanceAndAdmit: under the pressures of the moment, the next one that fits.

Theory of operation. The queue says who is next (`packing.py`, `queue.py`). It enters if its tenant may hold
another place, and the limits (`limits.py`) have room for it; who is blocked by tools lets those pass that do
without. Somebody who does not fit enters all the same where the pool would rest otherwise, or who waited too
long.

Deviations: with sessions that are inferred, who seems to be at work may be gone; so a pool that rests lets
the next one in within `LIVENESS_S`, whatever it holds up.

Invariant: whoever is chosen is next by the queue's order and fits, unless the pool would rest or it has aged,
or does without the tools that who is next waits for; nobody enters here: the pool lets in whom this chose.
"""

import math
from collections.abc import Mapping
from typing import Final

from gateway.admission.applicant import Applicant
from gateway.admission.cpu_pressure import CpuPressure
from gateway.admission.fair_share import FairShare
from gateway.admission.giving_back import GivingBack
from gateway.admission.limits import Bound, Limits
from gateway.admission.packing import Entry
from gateway.admission.queue import SessionQueue
from gateway.admission.quotas import Quotas
from gateway.admission.sessions import Member, Places
from gateway.admission.settings import AdmissionConfig
from gateway.admission.window import OVERLOADED
from gateway.domain.decision import WaitReason
from gateway.domain.ids import RequestId, SessionId, TenantId

LIVENESS_S: Final = 0.1


class BalanceAndAdmit:
    def __init__(
        self,
        config: AdmissionConfig,
        *,
        queue: SessionQueue,
        held: Mapping[SessionId, Mapping[RequestId, Applicant]],
        places: Places,
        limits: Limits,
        fair: FairShare,
        giving_back: GivingBack,
        quotas: Quotas,
        cpu: CpuPressure,
    ) -> None:
        self._config = config
        self._queue = queue
        self._held = held
        self._places = places
        self._limits = limits
        self._fair = fair
        self._giving_back = giving_back
        self._quotas = quotas
        self._cpu = cpu
        self.bound: Bound | None = None
        """What keeps out who is next."""

    def choose(self, *, now: float) -> tuple[Entry, bool] | None:
        entry = self.next(now=now)
        self.bound = None
        if entry is not None and self._fits(entry, now=now):
            return entry, False
        if self.blocked_by is WaitReason.TOOLS_FULL:
            for light in self._queue.lightest(self.may_hold):
                if self._cpu.is_light(light.agent) and self._fits(light, now=now):
                    return light, False
        entry = self._must_move(entry, now=now)
        return (entry, True) if entry is not None else None

    def next(self, *, now: float) -> Entry | None:
        is_bound = self._config.follows_tools and self._cpu.read(now=now).pressure >= OVERLOADED
        return self._queue.next(self.may_hold, is_cpu_bound=is_bound)

    def _fits(self, entry: Entry, *, now: float) -> bool:
        bound = self.why_not(self._places.members[entry.session], now=now)
        self.bound = self.bound or bound  # of who is next, whoever is tried behind it
        return bound is None

    def _must_move(self, first: Entry | None, *, now: float) -> Entry | None:
        """Who enters though it does not fit: liveness, where nobody else waits beyond a quota too; and one at
        a time that has aged, or is overdue. What it takes the others is the controller's to get back."""
        quiet_s = self._places.quiet_since_s
        if quiet_s is not None and now >= quiet_s + self.rest_s():
            return first or self._queue.next(lambda _: True, is_cpu_bound=False)
        if first is None or self._places.above:
            return None
        is_fixed = self._config.policy != "sessions" or self.blocked_by is WaitReason.TOOLS_FULL
        return first if first.is_aged or (first.is_overdue and not is_fixed) else None

    def rest_s(self) -> float:
        """How long the pool may rest while somebody waits.

        Not for long: those who seem to run a tool may wait for one that nobody knows to be theirs. But
        engines rest whenever tools are the bottleneck; where hosts say so, it is a feedback time.
        """
        if self.blocked_by is WaitReason.TOOLS_FULL and self._cpu.are_hosts_overloaded:
            return self._limits.window.feedback_s
        return LIVENESS_S

    @property
    def blocked_by(self) -> WaitReason | None:
        return self.bound.reason if self.bound is not None else None

    def why_not(self, member: Member, *, now: float) -> Bound | None:
        taking = max(1, len(self._held.get(member.session, ())))  # all of its turns enter with it
        bound = self._why_not_more(member.tenant, taking)
        return bound or self._limits.why_not(member, taking=taking)

    def may_hold(self, tenant: TenantId) -> bool:
        return self._why_not_more(tenant, 1) is None

    def _why_not_more(self, tenant: TenantId, taking: int) -> Bound | None:
        held = self._places.sessions_of(tenant)
        if not self._quotas.may_hold(tenant, held):
            return Bound(WaitReason.TENANT_SESSIONS, held + 1.0, held)
        if math.isinf(level := self._giving_back.level(tenant)):
            return None
        charge = self._fair.charge(tenant, float(taking))
        return Bound(WaitReason.OTHERS_LATE, charge, level) if charge > level else None
