"""The coordinator: every event goes through here, every command comes from here.

It owns no policy. It asks *who is this* (workflow) and *may it start, and where* (the gate), moves the
request along its lifecycle, keeps the books of sessions and replicas, and writes the information stream.
"""

import contextlib
from collections.abc import Mapping
from typing import Annotated, assert_never

import msgspec
from msgspec import Meta

from gateway.admission.bounds import Bounds
from gateway.admission.session_admission import SessionAdmission
from gateway.core import events as ev
from gateway.core import refusals
from gateway.core.bounding import Bounding
from gateway.core.commands import Cancel, Command, Refuse
from gateway.core.fleet import Fleet
from gateway.core.forecasts import Forecasts
from gateway.core.gate import Gate
from gateway.core.lifecycle import FINAL_STATES, LifecycleError, State, Step
from gateway.core.live import LiveRequest
from gateway.core.model_choices import ModelChoices
from gateway.core.replicas import Replicas
from gateway.core.session_book import SessionBook
from gateway.core.stream import Stream
from gateway.core.taught import Taught
from gateway.core.to_engines import ToEngines
from gateway.domain import records as rec
from gateway.domain.decision import Refusal
from gateway.domain.ids import PoolId, RequestId, SessionId
from gateway.domain.lessons import Notes
from gateway.domain.request import Answer
from gateway.domain.shares import Share
from gateway.errors import http_status
from gateway.fleet.trickle import Trickle
from gateway.routing.disaggregation import DisaggregationConfig
from gateway.routing.models import NamedModel, named_models
from gateway.routing.placement import PlacementPolicy
from gateway.routing.prefill_ahead import PrefillAheadConfig

_OUTCOMES = {Step.FINISH: "finished", Step.CUT: "cut", Step.LEAVE: "client_left"}


class CoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    """Times that one request is sent, as long as no replica has begun to answer; also when a replica closed a
    kept connection and gets it on a fresh one, which the first attempt may do in any case."""
    max_wait_s: Annotated[float, Meta(gt=0, le=3600)] = 50.0
    """A turn that waited this long is refused. Every client tried bears 50 s of silence, not all bear 60."""
    max_held_s: Annotated[float, Meta(gt=0, le=86400)] = 600.0
    """The same for those whose clients are told meanwhile that they wait: who reads a stream."""
    max_outage_s: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    """How long a turn is kept for which no replica is there any more, in case one comes back."""
    is_unknown_state_refused: bool = False
    """Refuse ids of stored state that we did not see being minted: they may be another tenant's."""


class Coordinator:
    def __init__(
        self,
        config: CoordinatorConfig,
        *,
        fleet: Fleet,
        admission: SessionAdmission,
        placement: PlacementPolicy,
        sessions: SessionBook,
        forecasts: Forecasts,
        trickle: Trickle,
        named_models: Mapping[str, NamedModel],
        ahead: PrefillAheadConfig,
        disaggregation: DisaggregationConfig,
        pulls: frozenset[PoolId] = frozenset(),
        transfers: frozenset[PoolId] = frozenset(),
        notes: Notes | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        """`transfers`: the pools whose replicas hand over prompts that they computed; `notes`: of what is
        learned, for other gateways; None if there are none; `bounds`: None if nobody is bounded."""
        self._config = config
        self.fleet = fleet
        self.sessions = sessions
        self.forecasts = forecasts
        self.live: dict[RequestId, LiveRequest] = {}
        self._out: list[Command] = []
        self._stream = Stream(self._out)
        self.admission = admission
        self._to_engines = ToEngines(fleet, sessions, admission, self._out)
        self.gate = Gate(
            fleet,
            admission,
            placement,
            forecasts,
            self.live,
            self._out,
            max_wait_s=config.max_wait_s,
            max_held_s=config.max_held_s,
            max_outage_s=config.max_outage_s,
            trickle=trickle,
            ahead=ahead,
            disaggregation=disaggregation,
            transfers=transfers,
            pulls=pulls,
            refuse=lambda live, refusal, now: self._refuse(live, refusal, now=now),
            to_engines=self._to_engines,
        )
        self.waiting_room = self.gate.waiting_room
        self.models = ModelChoices(named_models, fleet, self.gate, sessions.sessions, self.live, self._admit)
        self._replicas = Replicas(fleet, self.gate, admission, sessions.predictor, forecasts, self._stream)
        self.bounding = Bounding(bounds, sessions.sessions, self._out)
        self.taught = Taught(notes, fleet, sessions.predictor, admission, forecasts)
        self.is_draining, self._timeouts = False, 0
        self.faults = 0
        """Of ours, that it recovered from."""

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        """Takes in one fact and returns what to do, in order.

        `now`: seconds, never decreasing. Raises `LifecycleError`, with nothing changed, if a driver sends
        an event that the request's state does not allow or that is about no request that lives.
        """
        health = self.fleet.health
        if now >= health.next_due_s:
            health.pass_time(now=now)
        self._take_in(event, now=now)
        if self.fleet.forgotten:
            self._replicas.forget(now=now)
        if health.said:
            self.gate.tell_of_health(now=now)
        if self.gate.pools_with_room or self.waiting_room.turns:
            self.gate.let_in(now=now)
        if self.admission.said:
            self._stream.extend(self.admission.said)
            self.admission.said.clear()
        return self._commands()

    def share(self) -> Share:
        """What the other gateways must know; nothing changes."""
        return self._replicas.share()

    def recover(self, *, now: float) -> list[Command]:
        """After `handle` raised, by a fault of ours: what there is to do all the same.

        Whoever was left undecided is sent where least runs, or refused if that fails as well, if it was sent
        before (it may run), or if it builds on stored state (it may be another tenant's); of whoever is over,
        the books are closed.
        """
        self.faults += 1
        self._rescue(now=now)
        with contextlib.suppress(Exception):
            self.gate.let_in(now=now)
        self._rescue(now=now)
        return self._commands()

    def _rescue(self, *, now: float) -> None:
        for live in list(self.live.values()):
            if live.state in FINAL_STATES:
                with contextlib.suppress(Exception):
                    self._forget(live, None, now=now)
            elif live.state is State.UNDECIDED or self._is_lost(live):
                if Step.SUBMIT not in live.story and not live.facts.state_ids:
                    with contextlib.suppress(Exception):
                        self.gate.let_through(live, now=now)
                if live.state is not State.SUBMITTED:
                    self.gate.unbook(live)
                    with contextlib.suppress(Exception):
                        self._refuse(live, refusals.internal(), now=now)

    def _is_lost(self, live: LiveRequest) -> bool:
        return live.state is State.WAITING and live.request not in self.waiting_room

    def _commands(self) -> list[Command]:
        if (publishing := self.sessions.publishing) is not None:
            self._out += publishing.take()
        out = self._out.copy()
        self._out.clear()
        return out

    def next_deadline_s(self) -> float | None:
        """When `TimerFired` is due next, on the clock of `now`; None for never.

        In the past only if more sessions must be forgotten than one event may forget; each `TimerFired`
        then forgets some.
        """
        expires_s = self.sessions.next_expiry_s()
        if not self.waiting_room.turns:
            return expires_s
        due = (
            expires_s,
            self.waiting_room.next_deadline_s(),
            self.admission.next_deadline_s(),
            self.fleet.health.next_due_s,
        )
        return min((d for d in due if d is not None), default=None)

    def _take_in(self, event: ev.Event, *, now: float) -> None:  # noqa: C901 - one case for each event
        match event:
            case ev.RequestArrived():
                self._arrived(event, now=now)
            case ev.AnsweredAtOnce():
                self._answered_at_once(event, now=now)
            case ev.ResponseStarted():
                self._known(event.request).step(Step.START)
            case ev.FirstTokenSeen():
                self._first_token(self._answering(event.request), now=now)
            case ev.ToolCallSeen() | ev.ToolCallClosed() | ev.StateMinted():
                self._seen_on_the_way(event, now=now)
            case ev.ResponseFinished():
                self._answer_ended(self._known(event.request), Step.FINISH, event.answer, now=now)
            case ev.ResponseCut():
                self._answer_ended(self._known(event.request), Step.CUT, event.answer, now=now)
            case ev.ClientLeft():
                self._client_left(self._known(event.request), event.answer, now=now)
            case ev.AttemptFailed():
                self._attempt_failed(event, now=now)
            case (
                ev.ReplicaJoined()
                | ev.ReplicaCameUp()
                | ev.ReplicaWentDown()
                | ev.ReplicaDrained()
                | ev.ReplicaLeft()
                | ev.ResidencyTold()
                | ev.EngineReported()
                | ev.SharesReceived()
            ):
                for live in self._replicas.take_in(event, now=now):
                    self._admit(live, now=now)
            case ev.PrefillEnded() | ev.PrefillLegEnded():
                self._prefilled(event, now=now)
            case ev.HostReported():
                self.admission.host_reported(event.host, event.signals, now=now)
            case ev.ToolsTold():
                self._tell(self.sessions.tools_told(event.spans, event.tenant, now=now), now=now)
            case ev.SessionFinished() | ev.SessionStopped():
                self._end_session(event, now=now)
            case ev.LessonsReceived():
                self.taught.learn(event.lessons, now=now)
            case ev.SessionAdopted() | ev.SpendRemembered():
                self._remember(event, now=now)
            case ev.SettingsChanged() | ev.DrainStarted():
                self._operator_acted(event)
            case ev.TimerFired() | ev.HashesSeeded():  # what is unknown by another seed lapses
                self._timer_fired(now=now)
            case _:
                assert_never(event)

    def _operator_acted(self, event: ev.SettingsChanged | ev.DrainStarted) -> None:
        if isinstance(event, ev.DrainStarted):
            self.is_draining = True
            return
        settings = event.settings
        named = named_models(settings.models)  # first what may raise
        self.fleet.set_pools(settings.pools, settings.roles, settings.zones, settings.prices)
        self.admission.set_tenants(settings.quotas, settings.trusted)
        self.sessions.trusted = settings.trusted if settings.quotas else None
        self.forecasts.believe(settings.profiles)
        self.models.named = named

    def _known(self, request: RequestId) -> LiveRequest:
        live = self.live.get(request)
        if live is None:
            raise LifecycleError(f"request {request} is over, or never arrived")
        return live

    def _answering(self, request: RequestId) -> LiveRequest:
        live = self._known(request)
        live.require(State.ANSWERING)
        return live

    # --- arrival ---------------------------------------------------------------------------------

    def _arrived(self, event: ev.RequestArrived, *, now: float) -> None:
        if event.request in self.live:
            raise LifecycleError(f"request {event.request} arrived twice")
        facts = event.facts
        live = LiveRequest(
            request=event.request,
            tenant=event.tenant,
            owner=self.sessions.predictor.owner_of(event.tenant),
            facts=facts,
            pool=None,
            home=None,
            arrived_s=now,
        )
        self.live[event.request] = live  # first of all: nobody hangs whose home cannot be found
        home = self.sessions.find_home(event.tenant, facts) if facts.state_ids else None
        live.home = event.only or (home.replica if home else None)
        named = self.models.named.get(facts.model or "") if self.models.named else None
        if named is None:
            live.pool = self.fleet.pool_for(facts.model, live.home)
        refusal = self._refusal_at_the_door(live, named)
        if refusal is not None:
            self.bounding.give_back(event.reserved)
            self._refuse(live, refusal, now=now)
            return
        if facts.is_turn:
            live.session, found = self.sessions.turn_arrived(
                event.request, event.tenant, facts, home, now=now
            )
            session = self.sessions.sessions.get(live.session.session)
            if session is not None:
                live.task_arrived_s, live.runs_for = session.started_s, session.parent
            self._tell(found, now=now)
            if self.sessions.are_too_many:
                self._tell(self.sessions.expire(now=now), now=now)
        if named is not None:
            self.models.route(live, named)
        if self.bounding.is_on:
            refusal = self.bounding.refusal(live, event.reserved, now=now)
            if refusal is not None:
                self._refuse(live, refusal, now=now)
                return
        self._admit(live, now=now)

    def _refusal_at_the_door(self, live: LiveRequest, named: NamedModel | None) -> Refusal | None:
        if self.is_draining:
            return refusals.draining()
        if self._config.is_unknown_state_refused:
            unknown = self.sessions.first_unknown_state(live.tenant, live.facts)
            if unknown is not None:
                return refusals.unknown_state(unknown)
        return refusals.unknown_model(live.facts.model) if live.pool is None and named is None else None

    def _admit(self, live: LiveRequest, *, now: float) -> None:
        """Submits, parks or refuses a request that is new, whose attempt failed, or whose replicas left."""
        if live.route is None:
            live.model = self.fleet.served_by_some(live.pool, live.facts.model)
        elif self.models.falls_back_at_once(live, now=now):
            return
        refusal = self.gate.ask(live, now=now) if live.pool else refusals.unknown_model(live.facts.model)
        if refusal is not None and not self.models.spares(live, refusal, now=now):
            self._refuse(live, refusal, now=now)

    def _refuse(self, live: LiveRequest, refusal: Refusal, *, now: float) -> None:
        live.step(Step.REFUSE)
        self._stream.refused(live, refusal, now=now)
        self._out.append(
            Refuse(
                request=live.request,
                refusal=refusal,
                session=live.session,
                waited_s=live.waited_s,
                bound=live.bound,
            )
        )
        told = Answer(status=http_status(refusal.reason), retry_after_s=refusal.retry_after_s)
        self._forget(live, told, now=now)

    def _forget(self, live: LiveRequest, answer: Answer | None, *, now: float) -> None:
        del self.live[live.request]
        self._to_engines.runs(live.request)
        try:
            if self.bounding.is_on:
                self.bounding.turn_over(live, answer)
            self.gate.turn_over(live, answer, now=now)
        finally:
            self._tell(self.sessions.turn_ended(live, answer, now=now), now=now)
        if self.bounding.is_on and live.session is not None:
            self._free_place(live.session.session, now=now)
        if (
            self.gate.ahead.config.enabled
            and live.session is not None
            and answer is not None
            and answer.status < 400
        ):
            behind = self.sessions.predictor.behind(live.session)
            if behind is not None and behind[1].tools:
                self.gate.ahead.paused(live, answer.usage, *behind, now=now)

    def _tell(self, records: list[rec.Record], *, now: float) -> None:
        """Records of sessions go to the stream, and what policies act on, to them."""
        for record in records:
            if type(record) is rec.SessionEnded:
                self.admission.session_over(record.session, now=now)
                self.gate.placement.session_ended(record.session)
                self.gate.ranks.session_ended(record.session)
                self.gate.ahead.session_over(record.session, now=now)
                self.bounding.session_over(record.session)
        self.admission.tools_run(self.sessions.tools.active_sessions)
        for run in self.sessions.ran:
            self.admission.tools_ran(run.session, run.names, run.duration_s)
        self.sessions.ran.clear()
        self._stream.extend(records)
        if self.sessions.said:
            self._to_engines.say_hints()

    def _remember(self, event: ev.SessionAdopted | ev.SpendRemembered, *, now: float) -> None:
        """What others knew who are gone."""
        if isinstance(event, ev.SpendRemembered):
            self.bounding.remember(event.spent, now=now)
            return
        trace = event.trace
        self._tell(self.sessions.adopt(trace, now=now), now=now)
        self.gate.adopt(trace, now=now)
        if trace.stopped_for_s:
            self.bounding.stop(trace.session, until_s=now + trace.stopped_for_s)

    def _end_session(self, event: ev.SessionFinished | ev.SessionStopped, *, now: float) -> None:
        if isinstance(event, ev.SessionFinished):
            self._tell(self.sessions.finish(event.session, now=now), now=now)
            return
        session = self.sessions.sessions.get(event.session)
        if session is None:
            return
        self.bounding.stop(session.id, until_s=now + event.for_s)
        cancelled = 0
        for live in self.bounding.of(session.id, self.live):
            if live.state is State.WAITING:
                self.gate.leave_waiting_room(live, now=now)
                self._refuse(live, refusals.stopped(), now=now)
            elif event.cancels:
                self._out.append(Cancel(request=live.request, refusal=refusals.stopped()))
            else:
                continue
            cancelled += 1
        self._out.append(
            rec.SessionStopped(
                at_s=now,
                session=session.id,
                tenant=session.tenant,
                for_s=event.for_s,
                cancelled=cancelled,
                by=event.by,
            )
        )
        self._free_place(session.id, now=now)

    def _free_place(self, session_id: SessionId, *, now: float) -> None:
        """Of a session that was stopped, once nothing of it runs: others may have it."""
        session = self.sessions.sessions.get(session_id)
        if self.bounding.is_stopped(session_id) and session is not None and not session.live_turns:
            self.admission.session_over(session_id, now=now)

    # --- the answer ------------------------------------------------------------------------------

    def _first_token(self, live: LiveRequest, *, now: float) -> None:
        if live.saw_first_token:
            return
        assert live.replica is not None
        live.saw_first_token, live.first_token_s = True, now
        self._to_engines.runs(live.request)
        self.forecasts.first_token(live, live.replica, now=now)
        self.gate.first_token(live, now=now)
        self._stream.first_token(live, live.replica, now=now)

    def _seen_on_the_way(
        self, event: ev.ToolCallSeen | ev.ToolCallClosed | ev.StateMinted, *, now: float
    ) -> None:
        live = self._answering(event.request)
        match event:
            case ev.ToolCallSeen():
                self.sessions.call_minted(live, event.call)
            case ev.ToolCallClosed():
                self.sessions.call_closed(live, event.call, now=now)
            case ev.StateMinted():
                self.sessions.state_minted(live, event.state_id)

    def _answered_at_once(self, event: ev.AnsweredAtOnce, *, now: float) -> None:
        live = self._known(event.request)
        live.step(Step.START)
        if event.has_first_token:
            self._first_token(live, now=now)
        for state_id in event.answer.state_ids:
            self.sessions.state_minted(live, state_id)
        self._answer_ended(live, Step.FINISH, event.answer, now=now)

    def _answer_ended(self, live: LiveRequest, step: Step, answer: Answer, *, now: float) -> None:
        live.step(step)
        self._forget(live, self.gate.leave_replica(live, _OUTCOMES[step], answer, now=now), now=now)

    def _client_left(self, live: LiveRequest, answer: Answer | None, *, now: float) -> None:
        was = live.state
        live.step(Step.LEAVE)
        if was is State.WAITING:
            self.gate.leave_waiting_room(live, now=now)
            self._stream.left_waiting(live, now=now)
        elif was is State.PREFILLING:
            self.gate.leave_leg(live, None, _OUTCOMES[Step.LEAVE], is_fault=None, now=now)
            self._stream.left_waiting(live, now=now)
        else:
            answer = self.gate.leave_replica(live, _OUTCOMES[Step.LEAVE], answer, now=now)
        self._forget(live, answer, now=now)

    def _prefilled(self, event: ev.PrefillEnded | ev.PrefillLegEnded, *, now: float) -> None:
        if isinstance(event, ev.PrefillEnded):
            self.gate.prefill_ended(event.turn, event.usage, now=now)
            return
        live = self._known(event.request)
        live.step(Step.HAND_OVER)
        outcome = "ready" if event.usage is not None else "failed"
        self.gate.leave_leg(live, event.usage, outcome, is_fault=event.is_fault, now=now)
        self._admit(live, now=now)

    def _attempt_failed(self, event: ev.AttemptFailed, *, now: float) -> None:
        live = self._known(event.request)
        live.step(Step.FAIL)
        self.gate.leave_replica(live, "failed", None, blames_replica=not event.is_local, now=now)
        live.attempts += event.resends
        if live.route is not None:
            live.route.choice.begun -= 1
        if event.is_local:
            live.tried.pop()  # nothing speaks against this replica, and it may be the session's home
        may_repeat = not event.timed_out and (not event.was_sent or live.facts.is_replayable)
        if may_repeat and live.attempts < self._config.max_attempts:
            is_elsewhere = bool(self.gate.candidates(live.lane))
            if not is_elsewhere and self.models.falls_back(live, now=now):
                return
            if not is_elsewhere and self._config.max_outage_s:
                live.tried.clear()  # then wherever somebody is there again
            if is_elsewhere or not live.tried:
                self._admit(live, now=now)
                return
            if self.models.falls_back(live, is_refused=True, now=now):
                return
        self._refuse(live, refusals.attempt_failed(event), now=now)

    # --- time ------------------------------------------------------------------------------------

    def _timer_fired(self, *, now: float) -> None:
        while (request := self.waiting_room.first_expired(now=now)) is not None:
            live = self.live[request]
            if live.route is not None and self.models.deadline_came(live, now=now):
                continue
            self.gate.leave_waiting_room(live, now=now)
            self._timeouts += 1
            self._refuse(live, refusals.waited_too_long(self._timeouts, live.waits_for), now=now)
        self._tell(self.sessions.expire(now=now), now=now)
