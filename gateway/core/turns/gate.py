"""The gate to the fleet: lets requests through to replicas, or keeps them in the waiting room.

It asks admission *may it start*; where it runs is the dispatcher's to say.

Two things may keep a turn waiting: its session has no place yet (it is held, until admission lets its session
in), or no replica has room for it (it is in a lane).

A turn for which no replica is there waits for one, for a bounded time, if one was there before. Sessions that
lost their replica move in a trickle.

Invariants: after `drain_queue`, nobody in a lane waits for a replica that has room for it; a request never
runs on a replica that is down, on one that it was tried on, or anywhere but at its home if it has one.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

from gateway.admission.turn_request import ReplicaCapacity
from gateway.core.brain_state import BrainState
from gateway.core.turns.completion import Completion
from gateway.core.turns.dispatcher import CAPACITY_FREE_WORK, Dispatcher
from gateway.core.turns.lifecycle import Step
from gateway.core.turns.live import LiveRequest
from gateway.core.turns.waiting_room import Lane, Waiting
from gateway.domain.decision import Admit, Refusal, RefusalReason, Wait, WaitReason
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import PoolId
from gateway.domain.request import Work

_HOME_LOST = Wait(reason=WaitReason.HOME_LOST)
_NO_REPLICA = Wait(reason=WaitReason.NO_REPLICA)


class Gate:
    def __init__(self, shared: BrainState, dispatcher: Dispatcher, completion: Completion) -> None:
        self._config = shared.config
        self._live = shared.live
        self.waiting_room = shared.waiting_room
        self._fleet = shared.fleet
        self._admission = shared.admission
        self._placement = shared.placement
        self._forecasts = shared.forecasts
        self._migrations = shared.migrations
        self._records = shared.records
        self._dispatcher = dispatcher
        self._completion = completion
        # Of the last event that was looked at.
        self._now = 0.0

    def decide(self, live: LiveRequest, *, now: float) -> Refusal | None:
        assert live.pool is not None
        self._now = now
        without = *live.tried, *live.without
        candidates = self._fleet.candidates(live.pool, only=live.home, without=without, model=live.model)
        if candidates and live.facts.work in CAPACITY_FREE_WORK:
            self._dispatcher.submit(live, candidates, now=now)
            return None
        if (
            live.facts.work is Work.POOL
            and (refusal := self._admission.charge(live.tenant, 0.0, now=now)) is not None
        ):
            return refusal
        leaves: Waiting | RefusalReason | None = None

        def full() -> RefusalReason | None:
            nonlocal leaves
            leaves = self._displaced_by(live)
            return leaves if isinstance(leaves, RefusalReason) else None

        is_outage = not candidates and self._config.no_replica_wait_s > 0
        if is_outage:
            candidates = self._fleet.absent(live.pool, only=live.home)
        is_open = len(candidates) == 1 or bool(self._fleet.open_to_more(candidates, now=now))
        room = ReplicaCapacity(
            candidates=candidates,
            must_queue=is_outage
            or (bool(candidates) and not is_open)
            or (bool(self.waiting_room.turns) and self.waiting_room.has_lane(live.lane)),
            full=full,
        )
        # Only a session's slot depends on the tokens that it holds.
        tokens = self._forecasts.expected_tokens(live) if live.session is not None else 0.0
        decision = self._admission.decide(live.applicant(tokens), room, now=now)
        if self._admission.records:  # before what follows from it
            self._records.extend(self._admission.records)
            self._admission.records.clear()
        match decision:
            case Admit():
                if decision.would_wait is not None:
                    self._records.would_wait(live, decision.would_wait, now=now)
                if not self._may_move(live, candidates):
                    self._park(live, _HOME_LOST, now=now)
                    return None
                if len(candidates) > 1:
                    fit = self._dispatcher.with_room(candidates, now=now)
                    candidates = fit or [c for c in candidates if self._admission.has_room(c)]
                self._dispatcher.submit(live, candidates, tokens, now=now)
                return None
            case Wait():
                if isinstance(leaves, Waiting):
                    self._displace(self._live[leaves.request], now=now)
                if is_outage and decision.reason is WaitReason.CONCURRENCY_FULL:
                    decision = _NO_REPLICA
                self._park(live, decision, now=now)
                return None
            case Refusal():
                return decision
            case _:
                assert_never(decision)

    def _displaced_by(self, live: LiveRequest) -> Waiting | RefusalReason | None:
        """None where the waiting room is not full."""
        room, body_bytes = self.waiting_room, live.facts.body_bytes
        if not room.is_full(body_bytes):
            return None
        return room.displaced_by(live.tenant, body_bytes, self._admission.weight)

    def _displace(self, live: LiveRequest, *, now: float) -> None:
        self.leave_waiting_room(live, now=now)
        self._completion.refuse(live, self._admission.refuse(RefusalReason.TENANT_SHARE), now=now)

    def _park(self, live: LiveRequest, wait: Wait, *, now: float) -> None:
        live.step(Step.WAIT)
        live.parked_s = now
        live.waits_for = wait.reason
        deadline_s = self.deadline_s(live)
        if live.route is not None and (patience_s := live.route.patience_s) is not None:
            deadline_s = min(deadline_s, now + max(0.0, patience_s - live.waited_s))
        self.waiting_room.enter(
            Waiting(
                request=live.request,
                tenant=live.tenant,
                lane=live.lane,
                body=live.body,
                body_bytes=live.facts.body_bytes,
                arrived_s=live.arrived_s,
                deadline_s=deadline_s,
                is_held=wait.reason not in (WaitReason.CONCURRENCY_FULL, WaitReason.NO_REPLICA),
            )
        )
        is_deprioritized = wait.reason is WaitReason.BEHIND_OTHERS
        first = self._admission.first_waits_for(live.pool) if is_deprioritized else None
        self._records.waited(live, wait, len(self.waiting_room), first=first, now=now)

    def deadline_s(self, live: LiveRequest) -> float:
        most_s = self._config.max_stream_wait_s if live.facts.takes_keep_alives else self._config.max_wait_s
        longest_s = self._config.no_replica_wait_s if live.waits_for is WaitReason.NO_REPLICA else most_s
        return live.parked_s + max(0.0, min(longest_s, most_s - live.waited_s))

    def candidates(self, lane: Lane) -> list[ReplicaLoad]:
        return self._fleet.candidates(lane.pool, only=lane.home, without=lane.without, model=lane.model)

    def with_room(self, lane: Lane) -> list[ReplicaLoad]:
        return self._dispatcher.with_room(self.candidates(lane), now=self._now)

    def room_may_be(self, pool: PoolId) -> None:
        """Something changed for the better in this pool; `drain_queue` looks at it."""
        self._dispatcher.pools_with_room[pool] = None

    def drain_queue(self, *, now: float) -> None:
        pools = self._dispatcher.pools_with_room
        if self.waiting_room.turns:
            self._now = now
            if not self._fleet.health.all_up:
                for state in self._fleet:
                    pools[state.facts.pool] = None
            for request in self._admission.drain_queue(now=now):
                pools[self.waiting_room.release(request).lane.pool] = None
            self._let_move()
            for pool in pools:
                while self._let_one_in(pool, now=now):
                    pass
        pools.clear()

    def _let_one_in(self, pool: PoolId, *, now: float) -> bool:
        for first in self.waiting_room.first_of_each_lane(pool):
            candidates = self.candidates(first.lane)
            if room := self._dispatcher.with_room(candidates, now=now):
                live = self._live[first.request]
                if self._may_move(live, candidates):
                    self.leave_waiting_room(live, now=now)
                    self._dispatcher.submit(live, room, now=now)
                else:
                    self.waiting_room.hold(first.request)
                    live.waits_for = WaitReason.HOME_LOST
                return True
        return False

    def _may_move(self, live: LiveRequest, candidates: Sequence[ReplicaLoad]) -> bool:
        assert live.pool is not None
        if live.session is None or live.home is not None or len(candidates) < 1:
            return True
        home = self._placement.ledger.home(live.session)
        if home is None:
            return True
        for load in candidates:
            if load.replica == home:
                return True
        return self._migrations.may_move(live.request, live.pool, live.text_bytes, len(candidates))

    def _let_move(self) -> None:
        for pool in self._migrations.pools():
            replicas = len(self._fleet.candidates(pool, only=None, without=()))
            while (request := self._migrations.next_to_move(pool, replicas)) is not None:
                self.waiting_room.release(request)
                self.room_may_be(pool)

    def leave_waiting_room(self, live: LiveRequest, *, now: float) -> None:
        self.waiting_room.leave(live.request)
        live.waited_s += now - live.parked_s

    def withdraw(self, live: LiveRequest, *, now: float) -> None:
        if live.request in self.waiting_room:
            self.leave_waiting_room(live, now=now)
        self._migrations.over(live.request)
        self._admission.turn_over(live.request, None, now=now)

    def evict_unplaceable(self, pool: PoolId, *, now: float) -> list[LiveRequest]:
        stranded = []
        for first in self.waiting_room.first_of_each_lane(pool):
            if not self.candidates(first.lane):
                stranded += [self._live[waiting.request] for waiting in self.waiting_room.behind(first)]
        stranded += [
            self._live[held.request]
            for held in self.waiting_room.held(pool)
            if not self.candidates(held.lane)
        ]
        self._take_out(stranded, now=now)
        return stranded

    def misplaced(self, pool: PoolId, *, now: float) -> list[LiveRequest]:
        """Takes those out of the waiting room who wait in a lane that was theirs while the pool's replicas
        listed other models."""
        waiting = [self._live[each.request] for each in self.waiting_room if each.lane.pool == pool]
        found = [live for live in waiting if self._fleet.served_by_some(pool, live.runs_on) != live.model]
        self._take_out(found, now=now)
        return found

    def _take_out(self, waiting: Iterable[LiveRequest], *, now: float) -> None:
        for live in waiting:
            self.leave_waiting_room(live, now=now)
            self._migrations.over(live.request)
