"""Session admission: the unit is the session, and the window follows the engines and the tools.

Source: MARS (§4.2), BalanceAndAdmit; SAGA (§6); Agent.xpu (§4.4). Each mechanism has its module.

Deviations: the papers admit turns, or tasks that announce themselves. Here the place is the session's, and
sessions are inferred; so no lineage, right or wrong, may stop the fleet (`balance_and_admit.py`: liveness).

Invariants: a turn is admitted only if a candidate has room; turns of admitted sessions never wait for a
place; in shadow mode nothing waits for a place.
"""

from collections.abc import Collection, Mapping
from typing import Final

from gateway.admission.balance_and_admit import PoolAdmission
from gateway.admission.classes import ServiceClass, classify
from gateway.admission.cpu_pressure import CpuPressure
from gateway.admission.sessions import Member, Turn
from gateway.admission.settings import AdmissionConfig
from gateway.admission.tenants.quotas import Quota, Quotas, retry_after_s
from gateway.admission.turn_request import ReplicaCapacity, TurnOutcome, TurnRequest
from gateway.domain.decision import Admission, Admit, Edge, Refusal, RefusalReason, Wait, WaitReason
from gateway.domain.engine import EngineSignals, HostSignals
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.records import Record
from gateway.domain.request import Claims, Usage
from gateway.workflow.aeg.graphs import AegConfig, Graphs

NO_REPLICA: Final = Refusal(
    reason=RefusalReason.NO_REPLICA,
    message="No healthy backend can serve this request at the moment.",
    retry_after_s=2,
)
# The earliest retry after a full queue.
_BUSY_S: Final = 5.0


class SessionAdmission:
    def __init__(
        self,
        config: AdmissionConfig,
        tenants: Mapping[TenantId, Quota] | None = None,
        *,
        trusted: Collection[TenantId] = (),
        graphs: Graphs | None = None,
    ) -> None:
        """`trusted`: tenants whose claims count; without tenants all claims count."""
        self.config = config
        self._graphs = graphs if graphs is not None else Graphs(AegConfig())
        self._quotas = Quotas({})
        # Shared with all pools.
        self._weights: dict[TenantId, float] = {}
        self._cpu = CpuPressure()
        self._max_running = config.max_running_per_replica
        self.pools: dict[PoolId, PoolAdmission] = {}
        self._turns: dict[RequestId, Turn] = {}
        self.records: list[Record] = []
        self._refusals = 0
        self.set_tenants(tenants or {}, trusted)

    def set_tenants(self, tenants: Mapping[TenantId, Quota], trusted: Collection[TenantId]) -> None:
        self._tenants = dict(tenants)
        self._trusted = frozenset(trusted)
        self._quotas.set(self._tenants)
        self._has_quotas = any(quota.tokens_per_minute is not None for quota in tenants.values())
        self._weights.clear()
        self._weights.update({tenant: quota.weight for tenant, quota in self._tenants.items()})
        for pool in self.pools.values():
            pool.fair.weights_changed()
            pool.needs_scheduling = True

    # --- questions -----------------------------------------------------------------------------------

    def weight(self, tenant: TenantId) -> float:
        return self._weights.get(tenant, 1.0)

    def counts_tokens(self, tenant: TenantId) -> bool:
        return self._quotas.per_minute(tenant) is not None

    def has_room(self, load: ReplicaLoad) -> bool:
        return load.running < self._max_running

    def decide(self, applicant: TurnRequest, room: ReplicaCapacity, *, now: float) -> Admission:
        """Whether it starts now, waits, or is refused. A turn whose attempt failed keeps what it has."""
        if not room.candidates:
            return NO_REPLICA
        would_wait = None
        if applicant.session is not None:
            decision = self._decide_place(applicant, applicant.session, room, now=now)
            if decision is not None and not isinstance(decision, Admit):
                return decision
            would_wait = decision
        if not room.must_queue:
            for load in room.candidates:
                if load.running < self._max_running:
                    return would_wait or _ADMIT
        if (full := room.full()) is not None:
            return self.refuse(full)
        return Wait(reason=WaitReason.CONCURRENCY_FULL)

    def first_waits_for(self, pool: PoolId | None) -> WaitReason | None:
        known = self.pools.get(pool) if pool is not None else None
        return known.blocked_by if known is not None else None

    def _decide_place(
        self, applicant: TurnRequest, session: SessionId, room: ReplicaCapacity, *, now: float
    ) -> Admission | None:
        """None if the session is admitted; `Admit` with the reason if only in shadow mode."""
        turn = self._turns.get(applicant.request)
        if turn is not None:  # a retry, or its replicas changed while it waits
            return None if turn.is_admitted else Wait(reason=WaitReason.BEHIND_OTHERS)
        pool = self.pools.get(applicant.pool) or self._pool(applicant.pool)
        is_trusted = not self._tenants or applicant.tenant in self._trusted
        stated = applicant.claims if is_trusted else None
        member = pool.places.members.get(session)
        if member is None:
            member = pool.places.members[session] = self._new_member(applicant, session, stated)
        if stated is not None and stated.service_class == ServiceClass.REACTIVE.value:
            member.service_class = ServiceClass.REACTIVE  # in the queue it keeps its class
        turn = Turn(member, applicant, now)
        turn.is_last = stated is not None and stated.resumes is False
        if self._has_quotas:
            turn.charged = applicant.prompt_tokens
            refusal = self.charge(applicant.tenant, turn.charged, now=now)
            if refusal is not None:
                return refusal
        if member.silence is not None and member.turn and member.is_pause:
            turn.silent_s = now - member.gap_since_s
        turn.is_aside = applicant.edge is Edge.SERVES and not member.has_results
        is_shadow = self.config.shadow
        member.is_deprioritized = applicant.is_deprioritized and not is_shadow
        if member.is_deprioritized and member.is_in and not member.live and len(pool.queue):
            pool.release(member, now=now)
        would_wait = None
        if not member.is_in or (member.eviction_reason and not is_shadow):
            reason = pool.try_enter(member, now=now)
            if reason is not None and not is_shadow:
                return self._wait_for_a_place(turn, room, reason, now=now)
            if reason is not None:
                would_wait = Admit(would_wait=reason)
                pool.admit(member, now=now)
        self._turns[applicant.request] = turn
        pool.begin(turn, now=now)
        return would_wait

    def drain_queue(self, *, now: float) -> list[RequestId]:
        return [request for pool in self.pools.values() for request in pool.drain_queue(now=now)]

    def next_deadline_s(self) -> float | None:
        """When to call `drain_queue` without an event."""
        due = [at_s for pool in self.pools.values() if (at_s := pool.next_deadline_s()) is not None]
        return min(due) if due else None

    # --- notifications -------------------------------------------------------------------------------

    def turn_over(self, request: RequestId, outcome: TurnOutcome | None, *, now: float) -> None:
        """`outcome`: None if it was never admitted. Unknown requests are no error."""
        turn = self._turns.pop(request, None)
        if turn is None:
            return
        usage, pool = _NO_USAGE, self.pools[turn.applicant.pool]
        if not turn.is_admitted:
            pool.withdraw(turn.member.session, request, now=now)
        else:
            pool.turn_over(turn, outcome, now=now)
            usage = outcome.usage if outcome is not None else usage
        if turn.charged:
            self.used(turn.member.tenant, usage, charged=turn.charged, now=now)

    def class_of(self, session: SessionId, pool: PoolId) -> ServiceClass | None:
        """The class for engines; None for an unknown session."""
        known = self.pools.get(pool)
        member = known.places.members.get(session) if known is not None else None
        return member.class_on_engines if member is not None else None

    def session_over(self, session: SessionId, *, now: float) -> None:
        for pool in self.pools.values():
            pool.forget(session, now=now)

    def tools_ran(self, session: SessionId, names: tuple[str, ...], duration_s: float) -> None:
        member = None
        for pool in self.pools.values():
            if (found := pool.places.members.get(session)) is not None:
                member = found
                member.has_results = True
                pool.places.tools_run(member, do_run=False)
        if member is not None:
            self._cpu.saw_tool(names, duration_s, member.agent)

    def host_reported(self, host: str, signals: HostSignals, *, now: float) -> None:
        self._cpu.host_reported(host, signals, now=now)

    def engine_reported(
        self, pool: PoolId, replica: ReplicaId, signals: EngineSignals, *, now: float
    ) -> None:
        of_pool = self._pool(pool)
        of_pool.limits.gpu.engine_reported(replica, signals)
        of_pool.update_window(now=now)

    def fleet_changed(self, pool: PoolId, up: Collection[ReplicaId], *, now: float) -> None:
        of_pool = self._pool(pool)
        of_pool.limits.fleet_changed(up)
        of_pool.needs_scheduling = True

    # --- in, or not ----------------------------------------------------------------------------------

    def _pool(self, pool: PoolId) -> PoolAdmission:
        found = self.pools.get(pool)
        if found is None:
            found = self.pools[pool] = PoolAdmission(
                pool,
                self.config,
                cpu=self._cpu,
                quotas=self._quotas,
                weights=self._weights,
                graphs=self._graphs,
                records=self.records,
            )
        return found

    def _new_member(self, applicant: TurnRequest, session: SessionId, stated: Claims | None) -> Member:
        of_key = self._tenants.get(applicant.tenant, _NO_QUOTA).service_class
        return Member(
            session=session,
            tenant=applicant.tenant,
            agent=applicant.agent,
            task_arrived_s=applicant.task_arrived_s,
            service_class=classify(stated, of_key, is_background=applicant.is_background),
            tokens=applicant.prompt_tokens,
        )

    def _wait_for_a_place(
        self, turn: Turn, room: ReplicaCapacity, reason: WaitReason, *, now: float
    ) -> Admission:
        applicant = turn.applicant
        pool = self.pools[applicant.pool]
        if (full := room.full()) is not None:
            if turn.charged:
                self.used(applicant.tenant, _NO_USAGE, charged=turn.charged, now=now)
            return self.refuse(full)
        pool.hold(turn, now=now)
        self._turns[applicant.request] = turn
        return Wait(reason=reason)

    def refuse(self, reason: RefusalReason, message: str = "", wait_s: float = _BUSY_S) -> Refusal:
        """With a `retry_after_s` of its own, so that clients do not return together."""
        self._refusals += 1
        message = message or _MESSAGES[reason]
        return Refusal(reason=reason, message=message, retry_after_s=retry_after_s(wait_s, self._refusals))

    # --- tokens by the minute ------------------------------------------------------------------------

    def charge(self, tenant: TenantId, tokens: float, *, now: float) -> Refusal | None:
        """Requests without a place are charged at their end (`used`): the tokens of a list of texts or an
        hour of sound are unknown before. With 0 tokens, only a debt refuses."""
        wait_s = self._quotas.charge(tenant, tokens, now=now) if self._has_quotas else 0.0
        if wait_s <= 0:
            return None
        per_minute = self._quotas.per_minute(tenant)
        what = f"The {per_minute:,} tokens per minute of this key's tenant are used up for {wait_s:.0f} s."
        return self.refuse(RefusalReason.TENANT_QUOTA, what, wait_s)

    def used(self, tenant: TenantId, usage: Usage, *, charged: float = 0.0, now: float) -> None:
        used = (usage.prompt_tokens or 0) + (usage.output_tokens or 0)
        self._quotas.correct(tenant, charged, used, now=now)


_NO_USAGE: Final = Usage()
_ADMIT: Final = Admit()
_NO_QUOTA: Final = Quota()
_MESSAGES: Final = {
    RefusalReason.QUEUE_FULL: "All backends are busy and the waiting room is full.",
    RefusalReason.TENANT_SHARE: (
        "All backends are busy, and of those that wait this key has the largest part."
    ),
}
