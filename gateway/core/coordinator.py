"""The coordinator: every event goes through here, every command comes from here.

It owns no policy. It asks *who is this* (workflow), *may it start* (admission) and *where* (routing),
moves the request along its lifecycle, keeps the books of sessions and replicas, and writes the
information stream.
"""

from typing import Annotated, assert_never

import msgspec
from msgspec import Meta

from gateway.admission.controller import AdmissionPolicy, Offer
from gateway.admission.waiting_room import Waiting, WaitingRoom
from gateway.core import events as ev
from gateway.core.commands import Command, Dispatch, Refuse
from gateway.core.fleet import Fleet
from gateway.core.lifecycle import State, Step
from gateway.core.live import LiveRequest
from gateway.core.session_book import SessionBook
from gateway.core.stream import Stream
from gateway.domain import records as rec
from gateway.domain.decision import Admit, Placement, PlacementReason, Refusal, RefusalReason, Wait
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import PoolId, RequestId
from gateway.domain.request import Answer, RequestFacts, Work
from gateway.routing.placement import PlacementPolicy
from gateway.routing.state_residence import Residence

_CAPACITY_FREE_WORK = frozenset({Work.LIGHT, Work.STATE})
"""Work that costs an engine next to nothing and so never waits for a place."""

_OUTCOMES = {Step.FINISH: "finished", Step.CUT: "cut", Step.LEAVE: "client_left"}


class CoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    """Replicas tried for one request, as long as none has begun to answer."""
    max_wait_s: Annotated[float, Meta(gt=0, le=3600)] = 50.0
    """A turn that waited this long is refused. Every client tried bears 50 s of silence, not all bear 60."""
    is_unknown_state_refused: bool = False
    """Refuse ids of stored state that we did not see being minted: they may be another tenant's."""


class Coordinator:
    def __init__(
        self,
        config: CoordinatorConfig,
        *,
        fleet: Fleet,
        admission: AdmissionPolicy,
        placement: PlacementPolicy,
        sessions: SessionBook,
    ) -> None:
        self._config = config
        self.fleet = fleet
        self._admission = admission
        self._placement = placement
        self.sessions = sessions
        self.waiting_room = WaitingRoom()
        self.live: dict[RequestId, LiveRequest] = {}
        self._is_draining = False
        self._timeouts = 0
        self._out: list[Command] = []
        self._stream = Stream(self._out)
        self._pools_with_room: list[PoolId] = []

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        """Takes in one fact and returns what to do, in order.

        `now`: seconds, never decreasing. Raises `LifecycleError` if a driver sends an event that the
        request's state does not allow; a request event for an unknown request raises KeyError.
        """
        self._out = []
        self._stream = Stream(self._out)
        self._dispatch_event(event, now=now)
        while self._pools_with_room:
            self._drain_waiting_room(self._pools_with_room.pop(), now=now)
        return self._out

    def next_deadline_s(self) -> float | None:
        """When `TimerFired` is due next, on the clock of `now`; None for never."""
        due = (self.waiting_room.next_deadline_s(), self.sessions.next_expiry_s())
        return min((d for d in due if d is not None), default=None)

    def _dispatch_event(self, event: ev.Event, *, now: float) -> None:
        match event:
            case ev.RequestArrived():
                self._arrived(event, now=now)
            case ev.ResponseStarted():
                self.live[event.request].step(Step.START)
            case ev.FirstTokenSeen():
                self._first_token(self.live[event.request], now=now)
            case ev.ToolCallSeen():
                self.sessions.call_minted(self.live[event.request], event.call)
            case ev.StateMinted():
                self.sessions.state_minted(self.live[event.request], event.state_id)
            case ev.ResponseFinished():
                self._answer_ended(self.live[event.request], Step.FINISH, event.answer, now=now)
            case ev.ResponseCut():
                self._answer_ended(self.live[event.request], Step.CUT, event.answer, now=now)
            case ev.ClientLeft():
                self._client_left(self.live[event.request], event.answer, now=now)
            case ev.AttemptFailed():
                self._attempt_failed(event, now=now)
            case ev.ReplicaCameUp():
                self._replica_came_up(event, now=now)
            case ev.ReplicaWentDown():
                self._replica_went_down(event, now=now)
            case ev.SessionFinished():
                self._stream.extend(self.sessions.finish(event.session, now=now))
            case ev.DrainStarted():
                self._is_draining = True
            case ev.TimerFired():
                self._timer_fired(now=now)
            case _:
                assert_never(event)

    # --- arrival and admission -------------------------------------------------------------------

    def _arrived(self, event: ev.RequestArrived, *, now: float) -> None:
        if event.request in self.live:
            raise ValueError(f"request {event.request} arrived twice")
        facts = event.facts
        home = self.sessions.find_home(event.tenant, facts)
        live = LiveRequest(
            request=event.request,
            tenant=event.tenant,
            facts=facts,
            pool=self._pool_of(facts, home),
            home=home.replica if home else None,
            arrived_s=now,
        )
        self.live[event.request] = live
        refusal = self._refusal_at_the_door(live)
        if refusal is not None:
            self._refuse(live, refusal, now=now)
            return
        if facts.work is Work.GENERATE and facts.is_readable:
            live.session, found = self.sessions.turn_arrived(
                event.request, event.tenant, facts, home, now=now
            )
            self._stream.extend(found)
            self._stream.extend(self.sessions.expire(now=now))
        self._admit_or_wait(live, now=now)

    def _pool_of(self, facts: RequestFacts, home: Residence | None) -> PoolId | None:
        if home is not None and (state := self.fleet.get(home.replica)) is not None:
            return state.facts.pool
        return self.fleet.pool_for(facts.model)

    def _refusal_at_the_door(self, live: LiveRequest) -> Refusal | None:
        if self._is_draining:
            return Refusal(
                reason=RefusalReason.DRAINING, message="The gateway is shutting down.", retry_after_s=1
            )
        if live.facts.state_ids and live.home is None and self._config.is_unknown_state_refused:
            # It may be another tenant's, so no backend is asked. The text is vLLM's own not-found.
            message = f"Response with id '{live.facts.state_ids[0]}' not found."
            return Refusal(reason=RefusalReason.STATE_NOT_FOUND, message=message)
        if live.pool is None:
            message = f"The model `{live.facts.model}` does not exist."
            return Refusal(reason=RefusalReason.UNKNOWN_MODEL, message=message)
        return None

    def _admit_or_wait(self, live: LiveRequest, *, now: float) -> None:
        """Submits, parks or refuses a request that is new or whose attempt failed."""
        candidates = self._candidates(live)
        if candidates and live.facts.work in _CAPACITY_FREE_WORK:
            self._submit(live, candidates, now=now)
            return
        assert live.pool is not None
        decision = self._admission.decide(
            Offer(
                request=live.request,
                body_bytes=live.facts.body_bytes,
                candidates=candidates,
                must_queue=self.waiting_room.in_pool(live.pool) > 0,
                waiting=len(self.waiting_room),
                waiting_bytes=self.waiting_room.body_bytes,
            ),
            now=now,
        )
        match decision:
            case Admit():
                self._submit(live, [c for c in candidates if self._admission.has_room(c)], now=now)
            case Wait():
                self._park(live, decision, now=now)
            case Refusal():
                self._refuse(live, decision, now=now)
            case _:
                assert_never(decision)

    def _candidates(self, live: LiveRequest) -> list[ReplicaLoad]:
        assert live.pool is not None
        return self.fleet.candidates(live.pool, only=live.home, without=live.tried)

    def _park(self, live: LiveRequest, wait: Wait, *, now: float) -> None:
        assert live.pool is not None
        live.step(Step.WAIT)
        self.waiting_room.enter(
            Waiting(
                request=live.request,
                pool=live.pool,
                body_bytes=live.facts.body_bytes,
                deadline_s=now + self._config.max_wait_s,
            )
        )
        live.parked_s = now
        self._stream.waited(live, wait, len(self.waiting_room), now=now)

    def _submit(self, live: LiveRequest, candidates: list[ReplicaLoad], *, now: float) -> None:
        placement = self._placement.place(candidates)
        if live.home is not None:
            placement = Placement(replica=placement.replica, reason=PlacementReason.STATE_LIVES_THERE)
        elif live.tried:
            placement = Placement(replica=placement.replica, reason=PlacementReason.RETRIED_ELSEWHERE)
        live.step(Step.SUBMIT)
        live.replica, live.submitted_s = placement.replica, now
        live.tried = [*live.tried, placement.replica]
        self.fleet.submitted(placement.replica)
        self._stream.submitted(live, placement, now=now)
        self._out.append(
            Dispatch(
                request=live.request,
                placement=placement,
                session=live.session,
                waited_s=live.waited_s,
                attempt=len(live.tried),
            )
        )

    def _refuse(self, live: LiveRequest, refusal: Refusal, *, now: float) -> None:
        live.step(Step.REFUSE)
        self._stream.refused(live, refusal, now=now)
        self._out.append(
            Refuse(request=live.request, refusal=refusal, session=live.session, waited_s=live.waited_s)
        )
        self._forget(live, None, now=now)

    def _leave_waiting_room(self, live: LiveRequest, *, now: float) -> None:
        self.waiting_room.leave(live.request)
        live.waited_s += now - live.parked_s

    def _drain_waiting_room(self, pool: PoolId, *, now: float) -> None:
        """Submits every waiting turn of the pool that fits now, in order of arrival."""
        if not self.waiting_room.in_pool(pool):
            return
        for waiting in self.waiting_room.in_order():
            if waiting.pool != pool:
                continue
            live = self.live[waiting.request]
            room = [c for c in self._candidates(live) if self._admission.has_room(c)]
            if room:
                self._leave_waiting_room(live, now=now)
                self._submit(live, room, now=now)
            elif live.home is None and not live.tried:
                break  # nobody behind it is less choosy

    # --- the answer ------------------------------------------------------------------------------

    def _first_token(self, live: LiveRequest, *, now: float) -> None:
        if live.saw_first_token or live.replica is None:
            return
        live.saw_first_token = True
        self._stream.first_token(live, live.replica, now=now)

    def _answer_ended(self, live: LiveRequest, step: Step, answer: Answer, *, now: float) -> None:
        live.step(step)
        self._leave_replica(live, _OUTCOMES[step], answer, now=now)
        self._forget(live, answer, now=now)

    def _client_left(self, live: LiveRequest, answer: Answer | None, *, now: float) -> None:
        was = live.state
        live.step(Step.LEAVE)
        if was is State.WAITING:
            self._leave_waiting_room(live, now=now)
        else:
            self._leave_replica(live, _OUTCOMES[Step.LEAVE], answer, now=now)
        self._forget(live, answer, now=now)

    def _attempt_failed(self, event: ev.AttemptFailed, *, now: float) -> None:
        live = self.live[event.request]
        self._leave_replica(live, "failed", None, now=now)
        may_repeat = not event.timed_out and (not event.was_sent or live.facts.is_replayable)
        if may_repeat and len(live.tried) < self._config.max_attempts and self._candidates(live):
            self._admit_or_wait(live, now=now)
            return
        if event.timed_out:
            reason, what = RefusalReason.UPSTREAM_TIMEOUT, "did not answer in time"
        elif event.was_sent:
            reason, what = RefusalReason.UPSTREAM_BROKEN, "failed before it answered"
        else:
            reason, what = RefusalReason.UPSTREAM_UNREACHABLE, "could not be reached"
        self._refuse(live, Refusal(reason=reason, message=f"The backend {what}."), now=now)

    def _leave_replica(self, live: LiveRequest, outcome: str, answer: Answer | None, *, now: float) -> None:
        """Books the end of one attempt; its place on the replica is free from now on."""
        assert live.replica is not None
        replica, live.replica = live.replica, None
        self.fleet.ended(replica)
        self._stream.left_replica(live, replica, outcome, answer, now=now)
        assert live.pool is not None
        self._pools_with_room.append(live.pool)

    def _forget(self, live: LiveRequest, answer: Answer | None, *, now: float) -> None:
        del self.live[live.request]
        self._stream.extend(self.sessions.turn_ended(live, answer, now=now))

    # --- fleet and time --------------------------------------------------------------------------

    def _replica_came_up(self, event: ev.ReplicaCameUp, *, now: float) -> None:
        if self.fleet.came_up(event.facts):
            replica = event.facts.id
            self._stream.append(rec.ReplicaChanged(at_s=now, replica=replica, state="up", why="is healthy"))
            self._pools_with_room.append(event.facts.pool)

    def _replica_went_down(self, event: ev.ReplicaWentDown, *, now: float) -> None:
        if not self.fleet.went_down(event.replica):
            return
        self._stream.append(rec.ReplicaChanged(at_s=now, replica=event.replica, state="down", why=event.why))
        for waiting in self.waiting_room.in_order():
            live = self.live[waiting.request]
            if not self._candidates(live):  # it would wait for nobody
                self._leave_waiting_room(live, now=now)
                self._admit_or_wait(live, now=now)

    def _timer_fired(self, *, now: float) -> None:
        for request in self.waiting_room.expired(now=now):
            live = self.live[request]
            self._leave_waiting_room(live, now=now)
            self._timeouts += 1
            refusal = Refusal(
                reason=RefusalReason.QUEUE_TIMEOUT,
                message="All backends were busy for too long.",
                # Clients obey it to the millisecond; distinct values keep them from coming back together.
                retry_after_s=1 + self._timeouts % 29,
            )
            self._refuse(live, refusal, now=now)
        self._stream.extend(self.sessions.expire(now=now))
