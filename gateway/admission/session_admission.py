"""Session admission: the unit is the session, and the window follows the engines and the tools.

Source: MARS (§4.2), BalanceAndAdmit; SAGA (§6); Agent.xpu (§4.4). Each mechanism has its module.

Deviations: the papers admit turns or tasks that announce themselves. Here the place is the session's, and
sessions are inferred; so no lineage, right or wrong, may stop the fleet (`pool.py`: liveness).

Invariants: a turn is admitted only if some candidate has room for it; turns of sessions that are in never
wait for a place; the waiting room never holds more than its bounds; in shadow mode nothing waits for a
place.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from gateway.admission.applicant import Applicant, Displaced, Room, TurnOutcome
from gateway.admission.classes import ClassClaim, ServiceClass, classify
from gateway.admission.cpu_pressure import CpuPressure
from gateway.admission.overload import NO_REPLICA, Overload
from gateway.admission.pool import PoolAdmission
from gateway.admission.quotas import Quota, Quotas
from gateway.admission.sessions import Gap, Member
from gateway.admission.settings import AdmissionConfig
from gateway.domain.decision import Admission, Admit, Edge, Refusal, Wait, WaitReason
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.host import HostSignals
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.records import Record
from gateway.domain.request import Claims, Usage
from gateway.workflow.aeg.graph import Silence
from gateway.workflow.aeg.graphs import AegConfig, Graphs


class _Turn(msgspec.Struct):
    """A turn that admission knows of."""

    pool: PoolAdmission
    member: Member
    applicant: Applicant
    charged: float
    asked_s: float
    silent_s: float | None = None
    """Since its session's turn before; None if that goes on, or there was none."""
    is_aside: bool = False
    """A side request: it says nothing of how its session goes on."""
    is_let_in: bool = False
    may_find_warm: bool = False
    pause_s: float = 0.0
    """How long its session was silent in its place before."""
    gap_s: float = 0.0
    """As long, if it ran tools."""


class SessionAdmission:
    def __init__(
        self,
        config: AdmissionConfig,
        tenants: Mapping[TenantId, Quota] | None = None,
        *,
        trusted: Collection[TenantId] = (),
        graphs: Graphs | None = None,
    ) -> None:
        """`trusted`: whose claims of a class or deadline count; everybody's where there are no tenants."""
        self._config = config
        self._graphs = graphs if graphs is not None else Graphs(AegConfig())
        self._quotas = Quotas({})
        self._weights: dict[TenantId, float] = {}
        """All pools have it, too."""
        self._cpu = CpuPressure()
        self._max_running = config.max_running_per_replica
        self.pools: dict[PoolId, PoolAdmission] = {}
        self._turns: dict[RequestId, _Turn] = {}
        self.said: list[Record] = []
        self._overload = Overload(config)
        self.set_tenants(tenants or {}, trusted)

    def set_tenants(self, tenants: Mapping[TenantId, Quota], trusted: Collection[TenantId]) -> None:
        self._tenants = dict(tenants)
        self._trusted = frozenset(trusted)
        self._quotas.set(self._tenants)
        self._has_quotas = bool(self._quotas)
        self._weights.clear()
        self._weights.update({tenant: quota.weight for tenant, quota in self._tenants.items()})
        for pool in self.pools.values():
            pool.fair.weights_changed()
            pool.is_stirred = True

    # --- questions -----------------------------------------------------------------------------------

    def counts_tokens(self, tenant: TenantId) -> bool:
        quota = self._tenants.get(tenant)
        return quota is not None and quota.tokens_per_minute is not None

    def has_room(self, load: ReplicaLoad) -> bool:
        """Whether one more turn may run on this replica. Never changes anything."""
        return load.running < self._max_running

    def ask(self, applicant: Applicant, room: Room, *, now: float) -> Admission:
        """May this turn start now, must it wait, or is it turned away?

        Asked again about a turn whose attempt failed; it keeps what it has.
        """
        if not room.candidates:
            return NO_REPLICA
        would_wait = None
        if applicant.session is not None:
            decision = self._ask_for_a_place(applicant, applicant.session, room, now=now)
            if decision is not None and not isinstance(decision, Admit):
                return decision
            would_wait = decision
        if not room.must_queue:
            for load in room.candidates:
                if load.running < self._max_running:
                    return would_wait or _ADMIT
        if self._overload.is_full(room, applicant):
            return self._overload.refuse_for_the_fleet()
        return Wait(reason=WaitReason.CONCURRENCY_FULL)

    def first_waits_for(self, pool: PoolId | None) -> WaitReason | None:
        known = self.pools.get(pool) if pool is not None else None
        return known.balance.bound.reason if known is not None and known.balance.bound is not None else None

    def _ask_for_a_place(
        self, applicant: Applicant, session: SessionId, room: Room, *, now: float
    ) -> Admission | None:
        """None if the session is in. `Admit` if it is in shadow mode alone; then it says why."""
        turn = self._turns.get(applicant.request)
        if turn is not None:  # its attempt failed; or its replicas changed, and it waits as before
            return None if turn.is_let_in else Wait(reason=WaitReason.BEHIND_OTHERS)
        pool = self.pools.get(applicant.pool) or self._pool(applicant.pool)
        member = pool.places.members.get(session)
        if member is None:
            member = self._meet(pool, applicant, now=now)
        elif applicant.claims is not None:
            self._hear(member, applicant)
        charged = 0.0
        if self._has_quotas:
            charged, refusal = self._charge(applicant, now=now)
            if refusal is not None:
                return refusal
        is_pause = member.gap is not None and member.turn and member.is_pause
        silent_s = now - member.gap_since_s if is_pause else None
        is_aside = applicant.edge is Edge.SERVES and not member.has_results
        if applicant.is_behind and not self._config.shadow:
            member.is_behind = True
            if member.is_in and not member.live and len(pool.queue):
                pool.release(member, now=now)
        elif member.is_behind:
            member.is_behind = False
        turn = _Turn(pool, member, applicant, charged, now, silent_s=silent_s, is_aside=is_aside)
        would_wait = None
        if not member.is_in or (member.must_yield and not self._config.shadow):
            reason = pool.try_enter(member, applicant, now=now)
            if reason is not None and not self._config.shadow:
                return self._wait_for_a_place(turn, room, reason, now=now)
            if reason is not None:
                would_wait = Admit(would_wait=reason)
                pool.admit(member, now=now)
        self._turns[applicant.request] = turn
        self._begin(turn, now=now)
        return would_wait

    def let_in(self, *, now: float) -> Sequence[RequestId]:
        entered: list[RequestId] = []
        for pool in self.pools.values():
            due_s = pool.next_deadline_s()
            if not pool.is_stirred and (due_s is None or due_s > now):
                continue
            for applicant in pool.let_in(now=now):
                turn = self._turns[applicant.request]
                self._begin(turn, now=now)
                entered.append(applicant.request)
        return entered

    def displaced(self) -> Sequence[Displaced]:
        """Turns that have to leave the waiting room, each told once. `turn_over` follows for each."""
        return self._overload.displaced()

    def next_deadline_s(self) -> float | None:
        """When `let_in` is to be asked even if nothing happens; None for never."""
        due = [at_s for pool in self.pools.values() if (at_s := pool.next_deadline_s()) is not None]
        return min(due) if due else None

    # --- notifications -------------------------------------------------------------------------------

    def turn_over(self, request: RequestId, outcome: TurnOutcome | None, *, now: float) -> None:
        """The turn ended; `outcome` is None if it was never let in. Unknown requests are no error."""
        turn = self._turns.pop(request, None)
        if turn is None:
            return
        member, pool = turn.member, turn.pool
        if not turn.is_let_in:
            pool.withdraw(member.session, request, now=now)
            self._correct(turn, _NO_USAGE, now=now)
            return
        is_answered = outcome is not None and outcome.was_answered and not turn.is_aside
        if outcome is not None and is_answered:
            held = pool.places.tokens
            pool.saw_turn(
                member,
                turn.applicant,
                outcome,
                may_find_warm=turn.may_find_warm,
                asked_s=turn.asked_s,
                silent_s=turn.silent_s,
                pause_s=turn.pause_s,
                gap_s=turn.gap_s,
                now=now,
            )
            pool.is_stirred |= pool.places.tokens < held
        if turn.charged:
            self._correct(turn, outcome.usage if outcome is not None else _NO_USAGE, now=now)
        silence = outcome.silence if outcome is not None else None
        if silence is None or turn.applicant.edge is Edge.SERVES:  # it brought results, if it is no aside
            silence = Silence(outcome is not None and outcome.has_calls, None)
        gap = Gap.TOOL if silence.has_tools else Gap.IDLE
        pool.places.turn_ended(
            member, gap, silence.pause, is_answered=is_answered, is_aside=turn.is_aside, now=now
        )
        if not member.live and (member.must_yield or member.is_above):
            pool.turn_is_over(member, now=now)
        if now >= pool.limits.update_due_s:
            pool.update_window(now=now)

    def class_of(self, session: SessionId, pool: PoolId) -> ServiceClass | None:
        """How engines should treat it now: as it stated, as was inferred, or behind those who hold less.

        None if it is not known here."""
        known = self.pools.get(pool)
        member = known.places.members.get(session) if known is not None else None
        return known.class_on_engines(member) if known is not None and member is not None else None

    def session_over(self, session: SessionId, *, now: float) -> None:
        for pool in self.pools.values():
            pool.forget(session, now=now)

    def tools_ran(self, session: SessionId, names: tuple[str, ...], duration_s: float) -> None:
        for pool in self.pools.values():
            if (member := pool.places.members.get(session)) is not None:
                member.has_results = True
                pool.places.tools_run(member, do_run=False)
                self._cpu.saw_tool(names, duration_s, member.agent)
                return

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
        of_pool.is_stirred = True

    # --- in, or not ----------------------------------------------------------------------------------

    def _pool(self, pool: PoolId) -> PoolAdmission:
        found = self.pools.get(pool)
        if found is None:
            found = self.pools[pool] = PoolAdmission(
                pool,
                self._config,
                cpu=self._cpu,
                quotas=self._quotas,
                weights=self._weights,
                graphs=self._graphs,
                said=self.said,
            )
        return found

    def _meet(self, pool: PoolAdmission, applicant: Applicant, *, now: float) -> Member:
        tenant = self._tenants.get(applicant.tenant, _NOTHING_SAID)
        of_key = ServiceClass(tenant.service_class) if tenant.service_class is not None else None
        stated = self._believed(applicant)
        service_class, _ = classify(
            ClassClaim(stated=stated, key_class=of_key, is_background=applicant.is_background)
        )
        return pool.meet(applicant, service_class)

    def _believed(self, applicant: Applicant) -> Claims | None:
        is_trusted = applicant.tenant in self._trusted or not self._tenants
        return applicant.claims if is_trusted else None

    def _hear(self, member: Member, applicant: Applicant) -> None:
        """Somebody waits for a session as soon as one turn of it says so. One that waits in the queue stands
        there as it came."""
        stated = self._believed(applicant)
        if stated is not None and stated.service_class == ServiceClass.REACTIVE.value:
            member.service_class = ServiceClass.REACTIVE

    def _begin(self, turn: _Turn, *, now: float) -> None:
        member, pool = turn.member, turn.pool
        turn.is_let_in = True
        if turn.is_aside:
            pool.places.turn_began(member, is_aside=True, now=now)
            return
        member.has_results = False
        if member.is_pause and member.began_s and member.live == member.asides:
            pool.limits.cycle_s.add(turn.asked_s - member.began_s)  # what it waits for a place is our doing
        silent_s = max(0.0, turn.asked_s - member.gap_since_s) if member.gap is not None else 0.0
        turn.pause_s = member.kept_s or silent_s
        if member.gap is Gap.TOOL:
            turn.gap_s = silent_s
        turn.may_find_warm = not member.is_spilled and member.gap_since_s >= pool.limits.changed_s
        pool.places.turn_began(member, now=now)

    def _wait_for_a_place(self, turn: _Turn, room: Room, reason: WaitReason, *, now: float) -> Admission:
        applicant = turn.applicant
        if self._overload.is_full(room, applicant):
            refusal = self._overload.displace_for(turn.pool, applicant, room)
            if refusal is not None:
                self._correct(turn, _NO_USAGE, now=now)
                return refusal
        turn.pool.hold(turn.member, applicant, now=now)
        self._turns[applicant.request] = turn
        return Wait(reason=reason)

    def _charge(self, applicant: Applicant, *, now: float) -> tuple[float, Refusal | None]:
        tokens = applicant.prompt_tokens
        wait_s = self._quotas.charge(applicant.tenant, tokens, now=now)
        if wait_s <= 0:
            return tokens, None
        return 0.0, self._overload.refuse_for_its_quota(self._quotas.per_minute(applicant.tenant), wait_s)

    def debt(self, tenant: TenantId, *, now: float) -> Refusal | None:
        """What needs no place is charged when it is over (`used`): nobody knows before how many tokens a list
        of texts or an hour of sound is. Here only who owes is refused."""
        wait_s = self._quotas.charge(tenant, 0.0, now=now) if self._has_quotas else 0.0
        if wait_s <= 0:
            return None
        return self._overload.refuse_for_its_quota(self._quotas.per_minute(tenant), wait_s)

    def used(self, tenant: TenantId, usage: Usage, *, now: float) -> None:
        self._quotas.correct(tenant, 0.0, (usage.prompt_tokens or 0) + (usage.output_tokens or 0), now=now)

    def _correct(self, turn: _Turn, usage: Usage, *, now: float) -> None:
        if turn.charged:
            used = (usage.prompt_tokens or 0) + (usage.output_tokens or 0)
            self._quotas.correct(turn.member.tenant, turn.charged, used, now=now)


_NO_USAGE = Usage()
_ADMIT = Admit()
_NOTHING_SAID = Quota()
