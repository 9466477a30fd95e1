"""Session admission: the unit is the session, and the window follows the engines and the tools.

Source: MARS (§4.2), BalanceAndAdmit; SAGA (§6); Agent.xpu (§4.4). Each mechanism has its module.

Symbols: —

Deviations: the papers admit turns or tasks that announce themselves. Here the place is the session's, and
sessions are inferred; so no lineage, right or wrong, may stop the fleet (`pool.py`: liveness).

Invariants: a turn is admitted only if some candidate has room for it; turns of sessions that are in never
wait for a place; the waiting room never holds more than its bounds; in shadow mode nothing waits for a
place.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from gateway.admission.bounded import NO_REPLICA, queue_full
from gateway.admission.classes import ClassClaim, ServiceClass, classify
from gateway.admission.cpu_pressure import CpuPressure
from gateway.admission.gaps import Gap
from gateway.admission.policy import Applicant, Displaced, Room, TurnOutcome
from gateway.admission.pool import PoolAdmission
from gateway.admission.quotas import Quota, Quotas, retry_after_s
from gateway.admission.sessions import Member, ThreadState
from gateway.admission.settings import AdmissionConfig
from gateway.domain.decision import Admission, Admit, Edge, Refusal, RefusalReason, Wait, WaitReason
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.records import Record
from gateway.domain.request import Usage


class _Turn(msgspec.Struct, kw_only=True, eq=False):
    """A turn that admission knows of."""

    pool: PoolAdmission
    member: Member
    thread: ThreadId
    body_bytes: int
    continues: bool
    is_let_in: bool
    may_find_warm: bool
    charged: float


class SessionAdmission:
    def __init__(self, config: AdmissionConfig, tenants: Mapping[TenantId, Quota] | None = None) -> None:
        self._config = config
        self._tenants = dict(tenants or {})
        self._quotas = Quotas(self._tenants)
        self._has_quotas = bool(self._quotas)
        self._weights = {tenant: quota.weight for tenant, quota in self._tenants.items()}
        self._cpu = CpuPressure()
        self.pools: dict[PoolId, PoolAdmission] = {}
        self._turns: dict[RequestId, _Turn] = {}
        self._displaced: list[Displaced] = []
        self.said: list[Record] = []
        self._is_stirred = False
        self._refusals = 0

    # --- questions -----------------------------------------------------------------------------------

    def has_room(self, load: ReplicaLoad) -> bool:
        return load.running < self._config.max_running_per_replica

    def ask(self, applicant: Applicant, room: Room, *, now: float) -> Admission:
        if not room.candidates:
            return NO_REPLICA
        turn = self._turns.get(applicant.request)
        would_wait = None
        if turn is not None and not turn.is_let_in:  # its replicas changed; it waits for its place as before
            return Wait(reason=WaitReason.BEHIND_OTHERS)
        if turn is None and applicant.session is not None:
            pool = self._pool(applicant.pool)
            member = pool.places.members.get(applicant.session)
            if member is None:
                member = self._meet(pool, applicant, now=now)
            charged, refusal = self._charge(pool, member, applicant, now=now)
            if refusal is not None:
                return refusal
            if not member.is_in:
                reason = pool.try_enter(member, applicant, now=now)
                if reason is not None and not self._config.shadow:
                    return self._wait_for_a_place(pool, member, applicant, room, reason, charged, now=now)
                if reason is not None:
                    would_wait = reason
                    pool.force(member, now=now)
            self._let_in(pool, member, applicant, charged, now=now)
            self._is_stirred = True
        if not room.must_queue and any(self.has_room(load) for load in room.candidates):
            return Admit(would_wait=would_wait) if would_wait is not None else _ADMIT
        if self._is_full(room, applicant):
            return self._refuse_for_the_fleet()
        return Wait(reason=WaitReason.CONCURRENCY_FULL)

    def let_in(self, *, now: float) -> Sequence[RequestId]:
        if not self._is_stirred and not self._is_due(now=now):
            return ()
        self._is_stirred = False
        entered: list[RequestId] = []
        for pool in self.pools.values():
            for applicant in pool.let_in(now=now):
                turn = self._turns[applicant.request]
                self._begin(turn, now=now)
                entered.append(applicant.request)
        return entered

    def displaced(self) -> Sequence[Displaced]:
        if not self._displaced:
            return ()
        out, self._displaced = self._displaced, []
        return out

    def next_deadline_s(self) -> float | None:
        due = [at_s for pool in self.pools.values() if (at_s := pool.next_deadline_s()) is not None]
        return min(due) if due else None

    def _is_due(self, *, now: float) -> bool:
        due_s = self.next_deadline_s()
        return due_s is not None and due_s <= now

    # --- notifications -------------------------------------------------------------------------------

    def turn_over(self, request: RequestId, outcome: TurnOutcome | None, *, now: float) -> None:
        turn = self._turns.pop(request, None)
        if turn is None:
            return
        if not turn.is_let_in:
            turn.pool.withdraw(turn.member.session, request)
            self._is_stirred = True
            self._correct(turn, Usage(), now=now)
            return
        if outcome is not None:
            self._learn(turn, outcome, now=now)
        self._correct(turn, outcome.usage if outcome is not None else Usage(), now=now)
        member, pool = turn.member, turn.pool
        member.turn += 1
        pool.places.turn_ended(
            member, Gap.TOOL if outcome is not None and outcome.has_calls else Gap.IDLE, now=now
        )
        if member.must_yield and not member.live:
            pool.release(member)
        pool.update_window(now=now)
        self._is_stirred = True

    def session_over(self, session: SessionId, *, now: float) -> None:
        for pool in self.pools.values():
            member = pool.forget(session)
            if member is None:
                continue
            if member.turn and not member.counted_gone:
                pool.footprints.saw_end(member.agent, member.turn)
            self._is_stirred = True

    def tools_ran(self, names: tuple[str, ...], duration_s: float, active: int) -> None:
        self._cpu.active = active
        self._cpu.saw_tool(names, duration_s)

    def engine_reported(
        self, pool: PoolId, replica: ReplicaId, signals: EngineSignals, *, now: float
    ) -> None:
        of_pool = self._pool(pool)
        of_pool.gpu.engine_reported(replica, signals)
        of_pool.update_window(now=now)
        self._is_stirred = True

    def fleet_changed(self, pool: PoolId, up: Collection[ReplicaId], *, now: float) -> None:
        self._pool(pool).fleet_changed(up)
        self._is_stirred = True

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
                said=self.said,
            )
        return found

    def _meet(self, pool: PoolAdmission, applicant: Applicant, *, now: float) -> Member:
        tenant = self._tenants.get(applicant.tenant, _NOTHING_SAID)
        of_key = ServiceClass(tenant.service_class) if tenant.service_class is not None else None
        service_class, _ = classify(
            ClassClaim(
                stated=applicant.stated_class,
                is_trusted=tenant.may_state_class,
                key_class=of_key,
                service_tier=applicant.service_tier,
                is_background=applicant.is_background,
            )
        )
        has_deadline = applicant.deadline_s is not None and tenant.may_state_class
        deadline_s = now + applicant.deadline_s if has_deadline and applicant.deadline_s else None
        return pool.meet(applicant, service_class, deadline_s)

    def _let_in(
        self, pool: PoolAdmission, member: Member, applicant: Applicant, charged: float, *, now: float
    ) -> None:
        turn = self._turns[applicant.request] = _turn_of(pool, member, applicant, charged)
        self._begin(turn, now=now)

    def _begin(self, turn: _Turn, *, now: float) -> None:
        member, pool = turn.member, turn.pool
        if member.began_s and not member.live:
            pool.cycle_s.add(now - member.began_s)
        turn.is_let_in = True
        turn.may_find_warm = turn.continues and not member.is_spilled
        pool.places.turn_began(member, now=now)

    def _wait_for_a_place(
        self,
        pool: PoolAdmission,
        member: Member,
        applicant: Applicant,
        room: Room,
        reason: WaitReason,
        charged: float,
        *,
        now: float,
    ) -> Admission:
        if self._is_full(room, applicant):
            refusal = self._displace_for(pool, applicant)
            if refusal is not None:
                self._quotas.correct(applicant.tenant, charged, 0.0, now=now)
                return refusal
        pool.hold(member, applicant, now=now)
        self._turns[applicant.request] = _turn_of(pool, member, applicant, charged)
        self._is_stirred = True
        return Wait(reason=reason)

    def _charge(
        self, pool: PoolAdmission, member: Member, applicant: Applicant, *, now: float
    ) -> tuple[float, Refusal | None]:
        if not self._has_quotas:
            return 0.0, None
        tokens = pool.footprints.prompt_tokens(applicant.agent, applicant.body_bytes)
        wait_s = self._quotas.charge(applicant.tenant, tokens, now=now)
        if wait_s <= 0:
            return tokens, None
        self._refusals += 1
        return 0.0, Refusal(
            reason=RefusalReason.TENANT_QUOTA,
            message="This key has used up its tokens per minute.",
            retry_after_s=retry_after_s(wait_s, self._refusals),
        )

    def _correct(self, turn: _Turn, usage: Usage, *, now: float) -> None:
        if turn.charged:
            used = (usage.prompt_tokens or 0) + (usage.output_tokens or 0)
            self._quotas.correct(turn.member.tenant, turn.charged, used, now=now)

    # --- overload ------------------------------------------------------------------------------------

    def _is_full(self, room: Room, applicant: Applicant) -> bool:
        return (
            room.waiting >= self._config.max_waiting
            or room.waiting_bytes + applicant.body_bytes > self._config.max_waiting_bytes
        )

    def _displace_for(self, pool: PoolAdmission, applicant: Applicant) -> Refusal | None:
        """Makes room in the waiting room, or says why the applicant itself is refused: the newest of the
        least entitled leaves."""
        least = pool.queue.least_entitled()
        if least is None and not pool.queue.crowd(applicant.tenant) and len(pool.queue):
            least = next(entry.tenant for entry in pool.queue.some(1))
        if least is None:
            return self._refuse_for_the_fleet()
        if pool.queue.crowd(least) <= pool.queue.crowd(applicant.tenant):
            return self._refuse_for_its_share()
        newest = pool.queue.newest_of(least)
        assert newest is not None
        waiting = pool.held[newest.session]
        if sum(each.body_bytes for each in waiting.values()) < applicant.body_bytes > 0:
            return self._refuse_for_the_fleet()
        for request in waiting:
            self._displaced.append(Displaced(request, self._refuse_for_its_share()))
        return None

    def _refuse_for_its_share(self) -> Refusal:
        self._refusals += 1
        return Refusal(
            reason=RefusalReason.TENANT_SHARE,
            message="All backends are busy, and of those that wait this key has the largest part.",
            retry_after_s=retry_after_s(5.0, self._refusals),
        )

    def _refuse_for_the_fleet(self) -> Refusal:
        self._refusals += 1
        return queue_full(self._refusals)

    # --- what a turn teaches -------------------------------------------------------------------------

    def _learn(self, turn: _Turn, outcome: TurnOutcome, *, now: float) -> None:
        if not outcome.was_answered:
            return
        pool, member, usage = turn.pool, turn.member, outcome.usage
        known = pool.footprints
        before = member.threads.get(turn.thread)
        if usage.prompt_tokens is not None:
            prompt = float(usage.prompt_tokens)
            known.saw_size(member.agent, body_bytes=turn.body_bytes, prompt_tokens=usage.prompt_tokens)
            if usage.cached_tokens is not None:
                if member.turn == 0:
                    known.saw_shared(member.agent, usage.cached_tokens)
            if before is not None and turn.may_find_warm and before.replica == outcome.replica:
                left = min(before.prompt_tokens, prompt)
                pool.gpu.saw_warm_turn(left, usage.cached_tokens, is_pool_half_empty=pool.is_half_empty())
        else:
            prompt = known.prompt_tokens(member.agent, turn.body_bytes)
        tokens = prompt + (usage.output_tokens or 0)
        grown = tokens - before.tokens if before is not None and turn.continues else None
        known.saw_turn(member.agent, member.turn + 1, grown=grown, turn_s=outcome.ran_s)
        if outcome.launch_s is not None:
            pool.gpu.saw_launch(outcome.launch_s)
        is_over = not outcome.has_calls and any(
            other.tokens > tokens for name, other in member.threads.items() if name != turn.thread
        )  # a sub-agent that is done, a title: what remains of it is of no use to the others
        state = ThreadState(tokens=tokens, prompt_tokens=prompt, replica=outcome.replica)
        pool.places.remember(member, turn.thread, None if is_over else state)
        member.is_spilled = False


_ADMIT = Admit()
_NOTHING_SAID = Quota()


def _turn_of(pool: PoolAdmission, member: Member, applicant: Applicant, charged: float) -> _Turn:
    return _Turn(
        pool=pool,
        member=member,
        thread=applicant.thread or ThreadId(""),
        body_bytes=applicant.body_bytes,
        continues=applicant.edge in (Edge.CONTINUES, Edge.RETRIES),
        is_let_in=False,
        may_find_warm=False,
        charged=charged,
    )
