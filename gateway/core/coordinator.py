"""The coordinator: every event goes through here, every command comes from here.

It owns no policy. Of a request that arrives it asks *who is this* (workflow) and *may it start* (`gate.py`);
where it runs is `dispatcher.py`, what becomes of it then `attempts.py`, and how it ends `completion.py`. What
happens to replicas goes to `replicas.py`, what others say of sessions to `session_control.py`.
"""

import contextlib
from collections.abc import Callable, Mapping

from gateway.core import events as ev
from gateway.core import refusals
from gateway.core.brain_state import BrainState
from gateway.core.commands import Command
from gateway.core.model_choices import ModelChoices
from gateway.core.optional.remote_prefills import RemotePrefills
from gateway.core.optional.speculative_prefill import PrefillsAhead
from gateway.core.replicas import Replicas
from gateway.core.sessions.session_control import SessionControl
from gateway.core.to_engines import ToEngines
from gateway.core.turns.attempts import Attempts
from gateway.core.turns.completion import Completion
from gateway.core.turns.dispatcher import Dispatcher
from gateway.core.turns.fault_recovery import rescue
from gateway.core.turns.gate import Gate
from gateway.core.turns.lifecycle import LifecycleError
from gateway.core.turns.live import LiveRequest
from gateway.domain.decision import Refusal
from gateway.domain.ids import NOBODYS, PoolId, TenantId
from gateway.domain.request import Protocol, Work
from gateway.domain.shares import Share
from gateway.prefill_ahead.worth import PrefillAheadConfig
from gateway.routing.disaggregation import DisaggregationConfig
from gateway.routing.models import NamedModel, named_models


class Coordinator:
    def __init__(
        self,
        shared: BrainState,
        *,
        named_models: Mapping[str, NamedModel],
        ahead: PrefillAheadConfig,
        disaggregation: DisaggregationConfig,
        transfers: frozenset[PoolId] = frozenset(),
    ) -> None:
        """`transfers`: the pools whose replicas hand over prompts that they computed."""
        self._config, self._out, self._records = shared.config, shared.out, shared.records
        self.fleet = shared.fleet
        self.sessions = shared.sessions
        self.forecasts = shared.forecasts
        self.admission = shared.admission
        self.placement = shared.placement
        self.session_limits = shared.session_limits
        self.live = shared.live
        self.waiting_room = shared.waiting_room
        self.ranks = shared.ranks
        to_engines = ToEngines(shared)
        self.ahead = PrefillsAhead(ahead, shared, to_engines)
        self.legs = RemotePrefills(disaggregation, transfers, shared)
        self.dispatcher = Dispatcher(shared, self.legs, self.ahead, to_engines)
        self.completion = Completion(shared, self.ahead, to_engines)
        self.gate = Gate(shared, self.dispatcher, self.completion)
        self.models = ModelChoices(named_models, shared, self.gate, self._admit)
        self._attempts = Attempts(
            shared, self.gate, self.dispatcher, self.completion, self.models, self._admit
        )
        self._replicas = Replicas(shared, self.gate)
        self._session_control = SessionControl(shared, self.gate, self.completion)
        self._takes = self._table()
        self.is_draining, self._timeouts = False, 0
        self.faults = 0

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        """Takes in one fact and returns what to do, in order.

        `now`: seconds, never decreasing. Raises `LifecycleError`, with nothing changed, if a driver sends
        an event that the request's state does not allow or that is about no request that lives.
        """
        health = self.fleet.health
        if now >= health.next_due_s and type(event) is not ev.LoopStalled:
            health.pass_time(now=now)
            self._replicas.report_health(now=now)  # before what the event itself says
        self._takes[type(event)](event, now=now)
        if self.fleet.forgotten:
            self._replicas.forget(now=now)
        if health.changes:
            self._replicas.report_health(now=now)
        if self.waiting_room.turns:
            self.gate.drain_queue(now=now)
        else:
            self.dispatcher.pools_with_room.clear()
        if self.admission.records:
            self._records.extend(self.admission.records)
            self.admission.records.clear()
        if (publishing := self.sessions.publishing) is not None:
            self._out += publishing.take()
        commands, self._out[:] = self._out[:], ()
        return commands

    def share(self) -> Share:
        return self._replicas.share()

    def recover(self, *, now: float) -> list[Command]:
        """After `handle` raised, by a fault of ours: what there is to do all the same.

        Everybody is decided (`fault_recovery.py`), and the books of whoever is over are closed.
        """
        self.faults += 1
        self._rescue(now=now)
        with contextlib.suppress(Exception):
            self.gate.drain_queue(now=now)
        self._rescue(now=now)
        if (publishing := self.sessions.publishing) is not None:
            self._out += publishing.take()
        commands, self._out[:] = self._out[:], ()
        return commands

    def _rescue(self, *, now: float) -> None:
        rescue(self.live, self.gate, self.dispatcher, self.completion, now=now)

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

    def _table(self) -> dict[type[ev.Event], Callable[..., None]]:
        attempts = self._attempts
        of_answers = (ev.FirstTokenSeen, ev.ToolCallSeen, ev.ToolCallClosed, ev.StateMinted)
        of_replicas = (*ev.FleetEvent.__args__, ev.EngineReported)
        of_sessions = (ev.SessionFinished, ev.SessionStopped, ev.SessionAdopted, ev.AmbiguousEvidence)
        of_operators = (ev.SettingsChanged, ev.DrainStarted)
        return {
            ev.RequestArrived: self._arrived,
            ev.AnsweredAtOnce: attempts.answered_at_once,
            ev.ResponseStarted: attempts.started,
            **dict.fromkeys(of_answers, attempts.answer_went_on),
            ev.ResponseFinished: attempts.finished,
            ev.ResponseCut: attempts.cut,
            ev.ClientLeft: attempts.client_left,
            ev.AttemptFailed: attempts.failed,
            ev.PrefillLegEnded: attempts.leg_ended,
            ev.PrefillEnded: self._prefill_ended,
            **dict.fromkeys(of_replicas, self._replicas_changed),
            ev.LoopStalled: self._stalled,
            ev.HostReported: self._host_reported,
            **dict.fromkeys(of_sessions, self._session_control.take_in),
            ev.SpendRemembered: self._spend_remembered,
            **dict.fromkeys(of_operators, self._operator_acted),
            ev.TimerFired: self._timer_fired,
        }

    def _prefill_ended(self, event: ev.PrefillEnded, *, now: float) -> None:
        self.ahead.look_for_slack(self.ahead.ended(event.turn, event.usage, now=now), now=now)

    def _replicas_changed(self, event: ev.FleetEvent | ev.EngineReported, *, now: float) -> None:
        for live in self._replicas.take_in(event, now=now):
            self._admit(live, now=now)
        if isinstance(event, ev.ReplicaWentDown | ev.ReplicaLeft):
            self._attempts.replica_gone(now=now)

    def _stalled(self, event: ev.LoopStalled, *, now: float) -> None:
        self.fleet.health.stalled(event.lost_s)

    def _host_reported(self, event: ev.HostReported, *, now: float) -> None:
        self.admission.host_reported(event.host, event.signals, now=now)

    def _spend_remembered(self, event: ev.SpendRemembered, *, now: float) -> None:
        self.session_limits.remember(event.spent, now=now)

    def _operator_acted(self, event: ev.SettingsChanged | ev.DrainStarted, *, now: float) -> None:
        if isinstance(event, ev.DrainStarted):
            self.is_draining = True
            return
        settings = event.settings
        named = named_models(settings.models)  # first what may raise
        self.fleet.set_pools(settings.pools, settings.roles, settings.prices)
        self.admission.set_tenants(settings.quotas, settings.trusted)
        self.sessions.trusted = settings.trusted if settings.quotas else None
        self.forecasts.believe(settings.profiles)
        self.session_limits.apply_config(settings.bounds, settings.token_prices)
        self.models.named = named

    # --- arrival ---------------------------------------------------------------------------------

    def _arrived(self, event: ev.RequestArrived, *, now: float) -> None:
        if event.request in self.live:
            raise LifecycleError(f"request {event.request} arrived twice")
        facts = event.facts
        live = LiveRequest(
            request=event.request,
            tenant=event.tenant,
            key=event.key,
            owner=NOBODYS if self.sessions.conversations.is_shared else event.tenant,
            facts=facts,
            text_bytes=facts.body_bytes - facts.transcript.media_bytes,
            pool=None,
            home=None,
            without=event.without,
            arrived_s=now,
        )
        self.live[event.request] = live  # first of all: nobody hangs whose home cannot be found
        home = self.sessions.find_home(event.tenant, facts) if facts.state_ids else None
        live.home = home.replica if home else None
        named = self.models.named.get(facts.model or "") if self.models.named else None
        if named is None:
            live.pool = self.fleet.pool_for(facts.model, live.home)
        refusal = self._refusal_at_the_door(live, named)
        if refusal is not None:
            self.session_limits.give_back(event.reserved)
            self.completion.refuse(live, refusal, now=now)
            return
        if facts.is_turn:
            self.completion.emit(self.sessions.turn_arrived(live, home, now=now), now=now)
            if self.sessions.sessions.are_too_many:
                self.completion.emit(self.sessions.expire(now=now), now=now)
        if named is not None:
            self.models.route(live, named)
        refusal = (
            self.session_limits.refusal(live, event.reserved, now=now) if self.session_limits.is_on else None
        )
        if refusal is None and self._attempts.suspects.remembered:
            refusal = self._attempts.resume(live, now=now)
        if refusal is not None:
            self.completion.refuse(live, refusal, now=now)
        else:
            self._admit(live, now=now)

    def _refusal_at_the_door(self, live: LiveRequest, named: NamedModel | None) -> Refusal | None:
        if self.is_draining:
            return refusals.draining()
        facts = live.facts
        is_background = facts.is_background and facts.protocol is Protocol.RESPONSES
        if (is_background or facts.work is Work.TUNNEL) and self.counts_tokens(live.tenant):
            return refusals.uncounted(is_background=is_background)
        if self._config.reject_unknown_ids:
            states, known = live.facts.state_ids, self.sessions.residence
            unknown = next((each for each in states if known.find(live.tenant, each) is None), None)
            if unknown is not None:
                return refusals.unknown_state(unknown)
        return refusals.unknown_model(live.facts.model) if live.pool is None and named is None else None

    def counts_tokens(self, tenant: TenantId) -> bool:
        return self.admission.counts_tokens(tenant) or self.session_limits.counts_tokens(tenant)

    def _admit(self, live: LiveRequest, *, now: float) -> None:
        if live.route is None:
            live.model = self.fleet.served_by_some(live.pool, live.facts.model)
        elif self.models.falls_back_at_once(live, now=now):
            return
        refusal = self.gate.decide(live, now=now) if live.pool else refusals.unknown_model(live.facts.model)
        if refusal is not None and not self.models.spares(live, refusal, now=now):
            self.completion.refuse(live, refusal, now=now)

    # --- time ------------------------------------------------------------------------------------

    def _timer_fired(self, _: ev.TimerFired, *, now: float) -> None:
        while (request := self.waiting_room.first_expired(now=now)) is not None:
            live = self.live[request]
            if live.route is not None and self.models.deadline_came(live, now=now):
                continue
            self.gate.leave_waiting_room(live, now=now)
            self._timeouts += 1
            self.completion.refuse(live, refusals.waited_too_long(self._timeouts, live.waits_for), now=now)
        self.completion.emit(self.sessions.expire(now=now), now=now)
