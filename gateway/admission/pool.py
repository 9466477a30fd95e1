"""Admission to one pool: the mechanisms, composed.

A session takes a place with its first admitted turn and keeps it through its tool phases; those that find
none wait in the queue, and whoever the queue says is next enters when window and KV budget allow.

Invariants: nobody enters past the queue; a turn of a session that is in never waits for a place; if no
session that is in has a live turn, the next one enters within `LIVENESS_S` (`balance_and_admit.py`), whatever
it holds up; where hosts of tools report that they are overloaded, within a feedback time.
"""

import math
from collections.abc import Sequence
from typing import Final

from gateway.admission.applicant import Applicant, TurnOutcome
from gateway.admission.balance_and_admit import BalanceAndAdmit
from gateway.admission.classes import ServiceClass
from gateway.admission.cpu_pressure import CpuPressure
from gateway.admission.fair_share import BLOCKED_S, EPOCH_S, FairShare
from gateway.admission.giving_back import GivingBack
from gateway.admission.limits import SCARCE, Bound, Limits
from gateway.admission.packing import Entry
from gateway.admission.partition import part_of, share_of
from gateway.admission.queue import SessionQueue, entry_of
from gateway.admission.quotas import Quotas
from gateway.admission.sessions import Member, Places
from gateway.admission.settings import AdmissionConfig
from gateway.domain.admission_records import SessionAdmitted, SessionHeld
from gateway.domain.decision import WaitReason
from gateway.domain.ids import PoolId, RequestId, SessionId, TenantId
from gateway.domain.records import Record
from gateway.domain.shares import PoolShare
from gateway.workflow.aeg.graphs import Graphs

_UNKNOWN: Final = Bound(WaitReason.BEHIND_OTHERS, 0.0, 0.0)
_COMES_AGAIN_S: Final = 60.0
"""Who was told when to come again (in at most 30 s, `Retry-After`) and does so by then keeps its rank."""
_PART_CHANGED: Final = 0.02
"""By so much a gateway's part of the pool has to change before its limits follow at once."""
_SLOWEST: Final = 20.0
"""Tools are never waited for so many times as long as usual."""


class PoolAdmission:
    def __init__(
        self,
        pool: PoolId,
        config: AdmissionConfig,
        *,
        cpu: CpuPressure,
        quotas: Quotas,
        weights: dict[TenantId, float],
        graphs: Graphs,
        said: list[Record],
    ) -> None:
        self._pool = pool
        self._config = config
        self._cpu = cpu
        self._quotas = quotas
        self._said = said
        self._graphs = graphs
        self.fair = FairShare(weights)
        self.places = Places(graphs, config.gaps, self.fair.hold, cpu)
        self.limits = Limits(pool, config, places=self.places, cpu=cpu, said=said)
        self.window = self.limits.window
        self.promises = self.limits.promises
        self.giving_back = GivingBack(self.places, self.fair, self.limits, cpu, self.release)
        self.queue = SessionQueue(
            config.packing.order, self.fair, age_s=config.classes.age_s, max_door_wait=config.max_door_wait
        )
        self.held: dict[SessionId, dict[RequestId, Applicant]] = {}
        """The turns of those that are in the queue."""
        self.balance = BalanceAndAdmit(
            config,
            queue=self.queue,
            held=self.held,
            places=self.places,
            limits=self.limits,
            fair=self.fair,
            giving_back=self.giving_back,
            quotas=quotas,
            cpu=cpu,
        )
        self._freed: list[Applicant] = []
        """Turns that wait no longer, and were not told yet."""
        self.is_stirred = False
        """Somebody may be let in, or next, who could not before."""
        self._ticked_s = -math.inf

    # --- sessions ------------------------------------------------------------------------------------

    def meet(self, applicant: Applicant, service_class: ServiceClass) -> Member:
        assert applicant.session is not None
        member = self.places.members[applicant.session] = Member(
            session=applicant.session,
            tenant=applicant.tenant,
            agent=applicant.agent,
            task_arrived_s=applicant.task_arrived_s,
            service_class=service_class,
            tokens=applicant.prompt_tokens,
        )
        return member

    def try_enter(self, member: Member, applicant: Applicant, *, now: float) -> WaitReason | None:
        if member.must_yield or len(self.queue):
            own = not self._quotas.may_hold(member.tenant, self.places.sessions_of(member.tenant))
            return WaitReason.TENANT_SESSIONS if own else WaitReason.BEHIND_OTHERS
        bound = self.balance.why_not(member, now=now)
        if bound is not None and self._settle(now=now):
            bound = self.balance.why_not(member, now=now)
        if bound is None:
            self.admit(member, now=now)
            return None
        self.balance.bound = bound
        return bound.reason

    def hold(self, member: Member, applicant: Applicant, *, now: float) -> None:
        waiting = self.held.setdefault(member.session, {})
        waiting[applicant.request] = applicant
        is_back = member.session in self.queue or now - member.left_s <= _COMES_AGAIN_S
        if member.asked_s is None or not (is_back or member.is_in):
            member.asked_s = now
        if not member.is_in and member.session not in self.queue:
            self._queue_up(member, now=now)

    def _queue_up(self, member: Member, *, now: float) -> None:
        assert member.asked_s is not None
        bound = self.balance.bound or _UNKNOWN
        self._said.append(
            SessionHeld(
                at_s=now,
                session=member.session,
                pool=self._pool,
                tenant=member.tenant,
                reason=bound.reason,
                ahead=len(self.queue),
                with_it=bound.with_it,
                limit=bound.limit,
                is_behind=len(self.queue) > 0,
                gave_back=member.must_yield or None,
            )
        )
        entry = entry_of(
            member,
            self._graphs.known(member.agent),
            is_light=self._cpu.is_light(member.agent),
            cycle_s=self.limits.cycle_s.mean(10.0),
            since_s=member.asked_s,
        )
        self.queue.put(entry, self.class_on_engines(member))
        self.is_stirred = True

    def class_on_engines(self, member: Member) -> ServiceClass:
        return ServiceClass.PROACTIVE if member.is_behind else member.service_class

    def saw_turn(
        self,
        member: Member,
        applicant: Applicant,
        outcome: TurnOutcome,
        *,
        may_find_warm: bool,
        asked_s: float,
        silent_s: float | None,
        pause_s: float,
        gap_s: float,
        now: float,
    ) -> None:
        """What a turn that was answered needed of its engine and found there, and what its session holds now.
        `may_find_warm`: what its session left behind was still there when it began, for all we know."""
        limits, usage = self.limits, outcome.usage
        prompt = usage.prompt_tokens if usage.prompt_tokens is not None else applicant.prompt_tokens
        limits.saw_turn(outcome, may_find_warm=may_find_warm)
        if (held := outcome.held) is not None:
            self.places.holds(member, held.tokens, agent=held.agent)
            member.turn = held.turns
        else:
            self.places.holds(member, prompt + (usage.output_tokens or 0))
            member.turn += 1
        member.replica, member.is_spilled = outcome.replica, False
        if outcome.alone is None:
            return
        limits.throughput.saw_turn(outcome.alone, silent_s=silent_s, kept_s=pause_s, prompt_tokens=prompt)
        if self.giving_back.is_one_above and not self.fair.holds_too_much(member.tenant):
            self.promises.saw(gap_s=gap_s, taken_s=now - asked_s, alone_s=outcome.alone.seconds)

    def turn_is_over(self, member: Member, *, now: float) -> None:
        if member.must_yield:
            self.release(member, now=now)
        elif member.is_above:
            others = self.places.sessions_of(member.tenant) - 1
            if self.limits.is_over_full() or not self._quotas.may_hold(member.tenant, others):
                self.release(member, now=now)  # a guest: it goes on when the pool rests again, or has room
            else:
                self.places.above -= 1
                member.is_above = False

    def withdraw(self, session: SessionId, request: RequestId, *, now: float) -> None:
        """A turn that waited is gone; with its last one the session leaves the queue, and keeps its rank for
        a while."""
        waiting = self.held.get(session)
        if waiting is not None and waiting.pop(request, None) is not None and not waiting:
            del self.held[session]
            self.places.members[session].left_s = now
            if session in self.queue:
                self.queue.take(session)
                self.is_stirred = True

    def release(self, member: Member, *, now: float) -> None:
        self.places.release(member)
        self.is_stirred = True
        if member.session in self.held:  # turns of it came while it had to give its place back
            self._queue_up(member, now=now)

    def forget(self, session: SessionId, *, now: float) -> None:
        member = self.places.forget(session)
        if member is None:
            return
        if member.is_in:
            self.release(member, now=now)

    # --- beside other gateways -----------------------------------------------------------------------

    def share(self) -> PoolShare:
        return share_of(self.fair, demand_tokens=self.places.residents.peak(), waiting=len(self.queue))

    def share_with(self, others: Sequence[PoolShare], *, now: float) -> None:
        limits = self.limits
        capacity = limits.capacity(is_whole=True)
        part = part_of(self.share(), others, capacity=capacity, weights=self.fair.weights)
        if abs(part - limits.part) > _PART_CHANGED * limits.part:
            limits.part = part
            limits.update_due_s = now
            self.update_window(now=now)

    # --- who is next ---------------------------------------------------------------------------------

    def let_in(self, *, now: float) -> list[Applicant]:
        entered, self._freed, self.is_stirred = self._freed, [], False
        if not len(self.queue):
            self.balance.bound = None
            return entered
        self._tick(now=now)
        while len(self.queue):
            chosen = self.balance.choose(now=now)
            if chosen is None:
                break
            entry, is_above = chosen
            entered += self._enter_from_queue(entry, is_above=is_above, now=now)
        return entered

    def next_deadline_s(self) -> float | None:
        if not len(self.queue):
            return None
        tick_s = self._ticked_s + EPOCH_S
        quiet_s, rest_s = self.places.quiet_since_s, self.balance.rest_s()
        if quiet_s is None or quiet_s + rest_s <= self._ticked_s:
            return tick_s
        return min(tick_s, quiet_s + rest_s)  # nobody waits for the next tick while the pool rests

    def _enter_from_queue(self, entry: Entry, *, is_above: bool, now: float) -> list[Applicant]:
        self.queue.take(entry.session)
        member = self.places.members[entry.session]
        self.admit(member, is_above=is_above, now=now)
        self.places.quiet_since_s = None  # its turns begin before anything else is decided
        return list(self.held.pop(entry.session).values())

    def admit(self, member: Member, *, is_above: bool = False, now: float) -> None:
        waited_s = now - member.asked_s if member.asked_s is not None else 0.0
        self.places.enter(member, is_above=is_above, now=now)
        limit = self.limits.kv_limit()
        self._said.append(
            SessionAdmitted(
                at_s=now,
                session=member.session,
                pool=self._pool,
                tenant=member.tenant,
                waited_ms=waited_s * 1e3,
                admitted=self.places.count,
                tokens=member.tokens,
                held=max(0.0, self.places.tokens),
                kv_limit=limit if math.isfinite(limit) else None,
                is_above=is_above,
            )
        )

    # --- time ----------------------------------------------------------------------------------------

    def _tick(self, *, now: float) -> None:
        if now < self._ticked_s + EPOCH_S:
            return
        self._ticked_s = now
        self._settle(now=now)
        self.queue.age(now=now)
        self.update_window(now=now)
        self._make_room_for_the_blocked(now=now)

    def update_window(self, *, now: float) -> None:
        """Does something at most once a second."""
        if now < self.limits.update_due_s:
            return
        self.is_stirred = True
        self._settle(now=now)
        queue, blocked_by = self.queue, self.balance.blocked_by
        excess = self.limits.update(len(queue), queue.peaks, blocked_by=blocked_by, now=now)
        self.giving_back.after_update(excess, waiting=len(self.queue), now=now)
        self.giving_back.keep_promises(waiting=len(self.queue), now=now)

    def _settle(self, *, now: float) -> bool:
        slower = min(_SLOWEST, self._cpu.read(now=now).slower) if self._config.follows_tools else 1.0
        gone = self.places.gone(tools_slower=slower, worth_s=self.limits.worth_s(), now=now)
        self.is_stirred |= bool(gone)
        return bool(gone)

    def _make_room_for_the_blocked(self, *, now: float) -> None:
        if self.balance.blocked_by not in SCARCE:
            return
        first = self.balance.next(now=now)
        if first is not None and now - first.since_s >= BLOCKED_S:
            self.giving_back.for_the_blocked(first.tenant, now=now)
