"""Admission to one pool: the mechanisms, composed, and the next session to enter.

Source: MARS (§4.2), BalanceAndAdmit: under the present pressures, the next session that fits.

Theory of operation. A session takes a place with its first admitted turn and keeps it through its tool
phases; without a free place it waits in the queue (`pack_queue.py`). It enters if its tenant may hold another
place, and the limits (`limits.py`) have room; while tools are the limit, sessions with light tools pass. A
session that does not fit enters where the pool would idle otherwise, or after it has aged or is overdue.

Deviations: inferred sessions may be over without a sign; so an idle pool admits the next session within
`LIVENESS_S`, whatever it holds up.

Invariants: nothing enters past the queue; the chosen session is next and fits, unless the pool would idle, it
has aged or is overdue, or the next one waits for tools alone; a turn of an admitted session never waits for a
place; without live turns of admitted sessions the next one enters within `LIVENESS_S`, or within a feedback
time where hosts of tools report overload.
"""

import math
from collections.abc import Sequence
from typing import Final

from gateway.admission.cpu_pressure import CpuPressure
from gateway.admission.evictor import Evictor
from gateway.admission.limits import SCARCE, BlockingLimit, Limits
from gateway.admission.pack_queue import Entry, SessionQueue, entry_of
from gateway.admission.partition import part_of, share_of
from gateway.admission.sessions import Member, Places, Turn
from gateway.admission.settings import AdmissionConfig
from gateway.admission.tenants.fair_share import BLOCKED_S, EPOCH_S, FairShare
from gateway.admission.tenants.quotas import Quotas
from gateway.admission.turn_request import TurnOutcome
from gateway.admission.update_window import OVERLOADED
from gateway.domain.admission_records import SessionAdmitted, SessionHeld
from gateway.domain.decision import Edge, WaitReason
from gateway.domain.ids import PoolId, RequestId, SessionId, TenantId
from gateway.domain.records import Record
from gateway.domain.shares import PoolShare
from gateway.workflow.aeg.graph import Silence
from gateway.workflow.aeg.graphs import Graphs

LIVENESS_S: Final = 0.1
_UNKNOWN: Final = BlockingLimit(WaitReason.BEHIND_OTHERS, 0.0, 0.0)
# A refused session keeps its rank for so long; `Retry-After` is at most 30 s.
_COMES_AGAIN_S: Final = 60.0
# Smaller changes of a gateway's part wait for the next update.
_PART_CHANGED: Final = 0.02
# At most so many times their usual duration are tools waited for.
_SLOWEST: Final = 20.0


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
        records: list[Record],
    ) -> None:
        self._pool = pool
        self._config = config
        self._cpu = cpu
        self._quotas = quotas
        self._records = records
        self._graphs = graphs
        self.fair = FairShare(weights)
        self.places = Places(graphs, config.gaps, self.fair.hold, cpu)
        self.limits = Limits(pool, config, self.places, cpu, records)
        self.window = self.limits.window
        self.promises = self.limits.promises
        self.evictor = Evictor(self.places, self.fair, self.limits, cpu, self.release)
        self.queue = SessionQueue(
            config.packing.order, self.fair, age_s=config.classes.age_s, max_door_wait=config.max_door_wait
        )
        # Turns of sessions in the queue.
        self.held: dict[SessionId, dict[RequestId, Turn]] = {}
        # Of the next session.
        self.bound: BlockingLimit | None = None
        self.needs_scheduling = False
        self._ticked_s = -math.inf

    # --- turns ---------------------------------------------------------------------------------------

    def try_enter(self, member: Member, *, now: float) -> WaitReason | None:
        if member.is_in or self.queue.entries:  # it is to leave, or others are first
            own = not self._quotas.may_hold(member.tenant, self.places.sessions_of(member.tenant))
            return WaitReason.TENANT_SESSIONS if own else WaitReason.BEHIND_OTHERS
        bound = self._why_not(member)
        if bound is not None and self._settle(now=now):
            bound = self._why_not(member)
        if bound is None:
            self.admit(member, now=now)
            return None
        self.bound = bound
        return bound.reason

    def hold(self, turn: Turn, *, now: float) -> None:
        member = turn.member
        self.held.setdefault(member.session, {})[turn.applicant.request] = turn
        is_queued = member.session in self.queue.entries
        is_back = is_queued or now - member.left_s <= _COMES_AGAIN_S
        if member.waiting_since_s is None or not (is_back or member.is_in):
            member.waiting_since_s = now
        if not member.is_in and not is_queued:
            self._queue_up(member, now=now)

    def begin(self, turn: Turn, *, now: float) -> None:
        member, silence = turn.member, turn.member.silence
        turn.is_admitted = True
        if not turn.is_aside:
            member.has_results = False
            if member.is_pause and member.began_s and member.live == member.side_requests:
                self.limits.cycle_s.add(turn.arrived_s - member.began_s)  # without its wait here
            silent_s = max(0.0, turn.arrived_s - member.gap_since_s) if silence is not None else 0.0
            turn.pause_s = member.kept_s or silent_s
            turn.gap_s = silent_s if silence is not None and silence.has_tools else 0.0
            turn.may_find_warm = not member.was_evicted and member.gap_since_s >= self.limits.changed_s
        self.places.turn_began(member, is_aside=turn.is_aside, now=now)

    def turn_over(self, turn: Turn, outcome: TurnOutcome | None, *, now: float) -> None:
        member, places = turn.member, self.places
        is_answered = outcome is not None and outcome.was_answered and not turn.is_aside
        if outcome is not None and is_answered:
            held = places.tokens
            self._saw_turn(turn, outcome, now=now)
            self.needs_scheduling |= places.tokens < held
        silence = outcome.silence if outcome is not None else None
        if turn.is_last:
            silence = Silence(False, None)
        elif silence is None or turn.applicant.edge is Edge.SERVES:  # no aside has results
            silence = Silence(outcome is not None and outcome.has_calls, None)
        places.turn_ended(member, silence, is_answered=is_answered, is_aside=turn.is_aside, now=now)
        if member.eviction_reason and not member.live:
            self.release(member, now=now)
        elif member.is_over_limit and not member.live:
            others = places.sessions_of(member.tenant) - 1
            if self.limits.is_over_full() or not self._quotas.may_hold(member.tenant, others):
                self.release(member, now=now)  # it goes on when there is room
            else:
                places.above -= 1
                member.is_over_limit = False
        if now >= self.limits.update_due_s:
            self.update_window(now=now)

    def _saw_turn(self, turn: Turn, outcome: TurnOutcome, *, now: float) -> None:
        member, limits, usage, held = turn.member, self.limits, outcome.usage, outcome.held
        prompt = usage.prompt_tokens if usage.prompt_tokens is not None else turn.applicant.prompt_tokens
        left, token_s = outcome.left if turn.may_find_warm else None, None
        if left is None or usage.prompt_tokens is None:
            limits.gpu.saw_turn()
        else:
            if outcome.prefill_s is not None:
                token_s = outcome.prefill_s / max(1, prompt - (usage.cached_tokens or 0))
            limits.gpu.saw_turn(min(left, prompt), usage.cached_tokens, token_s=token_s)
        if outcome.grown is not None:
            limits.grown.add(outcome.grown)
        if held is not None:
            self.places.holds(member, held.tokens, agent=held.agent)
            member.turn = held.turns
        else:
            self.places.holds(member, prompt + (usage.output_tokens or 0))
            member.turn += 1
        member.replica, member.was_evicted = outcome.replica, False
        if outcome.alone is None:
            return
        limits.throughput.saw_turn(
            outcome.alone, silent_s=turn.silent_s, kept_s=turn.pause_s, prompt_tokens=prompt
        )
        if self.evictor.is_one_above and not self.fair.holds_too_much(member.tenant):
            taken_s, alone_s = now - turn.arrived_s, outcome.alone.seconds
            self.promises.saw(gap_s=turn.gap_s, taken_s=taken_s, alone_s=alone_s)

    def withdraw(self, session: SessionId, request: RequestId, *, now: float) -> None:
        """With its last waiting turn a session leaves the queue; it keeps its rank for a while."""
        waiting = self.held.get(session)
        if waiting is not None and waiting.pop(request, None) is not None and not waiting:
            del self.held[session]
            self.places.members[session].left_s = now
            if session in self.queue.entries:
                self.queue.take(session)
                self.needs_scheduling = True

    # --- places --------------------------------------------------------------------------------------

    def _queue_up(self, member: Member, *, now: float) -> None:
        bound = self.bound or _UNKNOWN
        self._records.append(
            SessionHeld(
                at_s=now,
                session=member.session,
                pool=self._pool,
                tenant=member.tenant,
                reason=bound.reason,
                ahead=len(self.queue),
                with_it=bound.with_it,
                limit=bound.limit,
                is_deprioritized=len(self.queue) > 0,
                gave_back=member.eviction_reason or None,
            )
        )
        graph, is_light = self._graphs.known(member.agent), self._cpu.is_light(member.agent)
        entry = entry_of(member, graph, is_light=is_light, cycle_s=self.limits.cycle_s.mean(10.0))
        self.queue.put(entry, member.class_on_engines)
        self.needs_scheduling = True

    def admit(self, member: Member, *, is_over_limit: bool = False, now: float) -> None:
        waited_s = now - member.waiting_since_s if member.waiting_since_s is not None else 0.0
        self.places.enter(member, is_over_limit=is_over_limit, now=now)
        limit = self.limits.kv_limit()
        self._records.append(
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
                is_over_limit=is_over_limit,
            )
        )

    def release(self, member: Member, *, now: float) -> None:
        self.places.release(member)
        self.needs_scheduling = True
        if member.session in self.held:  # its turns arrived while it was marked for eviction
            self._queue_up(member, now=now)

    def forget(self, session: SessionId, *, now: float) -> None:
        member = self.places.members.pop(session, None)
        if member is not None:
            self.places.tools_run(member, do_run=False)
            if member.is_in:
                self.release(member, now=now)

    # --- the queue -----------------------------------------------------------------------------------

    def drain_queue(self, *, now: float) -> list[RequestId]:
        due_s = self.next_deadline_s()
        if not self.needs_scheduling and (due_s is None or due_s > now):
            return []
        self.needs_scheduling = False
        if not len(self.queue):
            self.bound = None
            return []
        if now >= self._ticked_s + EPOCH_S:
            self._ticked_s = now
            self._settle(now=now)
            self.queue.age(now=now)
            self.update_window(now=now)
            if self.blocked_by in SCARCE and (first := self._next(now=now)) is not None:
                if now - first.since_s >= BLOCKED_S:
                    self.evictor.for_the_blocked(first.tenant, now=now)
        entered: list[Turn] = []
        while len(self.queue) and (chosen := self.choose(now=now)) is not None:
            entry, is_over_limit = chosen
            self.queue.take(entry.session)
            self.admit(self.places.members[entry.session], is_over_limit=is_over_limit, now=now)
            self.places.no_live_turn_since_s = None  # its turns begin before anything else is decided
            entered += self.held.pop(entry.session).values()
        for turn in entered:
            self.begin(turn, now=now)
        return [turn.applicant.request for turn in entered]

    def next_deadline_s(self) -> float | None:
        if not len(self.queue):
            return None
        tick_s = self._ticked_s + EPOCH_S
        quiet_s, liveness_s = self.places.no_live_turn_since_s, self._liveness_s()
        if quiet_s is None or quiet_s + liveness_s <= self._ticked_s:
            return tick_s
        return min(tick_s, quiet_s + liveness_s)  # an idle pool does not wait for the next tick

    def choose(self, *, now: float) -> tuple[Entry, bool] | None:
        """The next session to enter, and whether it is over the limit."""
        entry = self._next(now=now)
        self.bound = None
        if entry is not None and self._fits(entry):
            return entry, False
        if self.blocked_by is WaitReason.TOOLS_FULL:
            for light in self.queue.lightest(self._may_hold):
                if self._cpu.is_light(light.agent) and self._fits(light):
                    return light, False
        entry = self._admit_over_limit(entry, now=now)
        return (entry, True) if entry is not None else None

    def _next(self, *, now: float) -> Entry | None:
        is_cpu_bound = self._config.limit_by_tool_load and self._cpu.read(now=now).pressure >= OVERLOADED
        return self.queue.next(self._may_hold, is_cpu_bound=is_cpu_bound)

    def _fits(self, entry: Entry) -> bool:
        bound = self._why_not(self.places.members[entry.session])
        self.bound = self.bound or bound  # of the first one tried
        return bound is None

    def _admit_over_limit(self, first: Entry | None, *, now: float) -> Entry | None:
        """For liveness, beyond a quota where all others are too; else one aged or overdue session at a time.
        The window's controller makes up for it."""
        quiet_s = self.places.no_live_turn_since_s
        if quiet_s is not None and now >= quiet_s + self._liveness_s():
            return first or self.queue.next(lambda _: True, is_cpu_bound=False)
        if first is None or self.places.above:
            return None
        is_fixed = self._config.policy != "sessions" or self.blocked_by is WaitReason.TOOLS_FULL
        is_overdue = first.session in self.queue.overdue and not is_fixed
        return first if first.is_aged or is_overdue else None

    def _liveness_s(self) -> float:
        """How long the pool may idle while sessions wait: inferred tool phases may be over. A feedback time
        where hosts report that tools are the bottleneck."""
        if self.blocked_by is WaitReason.TOOLS_FULL and self._cpu.are_hosts_overloaded:
            return self.window.feedback_s
        return LIVENESS_S

    @property
    def blocked_by(self) -> WaitReason | None:
        return self.bound.reason if self.bound is not None else None

    def _why_not(self, member: Member) -> BlockingLimit | None:
        taking = max(1, len(self.held.get(member.session, ())))  # all its waiting turns enter
        return self._why_not_more(member.tenant, taking) or self.limits.why_not(member, taking=taking)

    def _may_hold(self, tenant: TenantId) -> bool:
        return self._why_not_more(tenant, 1) is None

    def _why_not_more(self, tenant: TenantId, taking: int) -> BlockingLimit | None:
        held = self.places.sessions_of(tenant)
        if not self._quotas.may_hold(tenant, held):
            return BlockingLimit(WaitReason.TENANT_SESSIONS, held + 1.0, held)
        if math.isinf(level := self.evictor.level(tenant)):
            return None
        charge = self.fair.charge(tenant, float(taking))
        return BlockingLimit(WaitReason.OTHERS_LATE, charge, level) if charge > level else None

    # --- time, and other gateways --------------------------------------------------------------------

    def update_window(self, *, now: float) -> None:
        """At most once a second."""
        if now < self.limits.update_due_s:
            return
        self.needs_scheduling = True
        self._settle(now=now)
        waiting = len(self.queue)
        excess = self.limits.update(waiting, self.queue.peaks, blocked_by=self.blocked_by, now=now)
        if excess is not None:
            self.evictor.give_way(excess, now=now)
        self.evictor.keep_promises(waiting=len(self.queue), now=now)

    def _settle(self, *, now: float) -> bool:
        slower = min(_SLOWEST, self._cpu.read(now=now).slower) if self._config.limit_by_tool_load else 1.0
        gone = self.places.gone(tools_slower=slower, max_idle_hold_s=self.limits.max_idle_hold_s(), now=now)
        self.needs_scheduling |= bool(gone)
        return bool(gone)

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
