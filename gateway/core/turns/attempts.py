"""What becomes of a request that was sent: its answer begins, goes on and ends; its attempt fails, and it is
sent again or refused; its client leaves.

Invariants: a request is sent again only while no replica has begun to answer it, and only if running it
twice harms nobody. One that was sent and got no head may be what the replica died of: it is sent once more,
wherever that is, and no further; a client that sends it again does not begin anew (`poison_requests.py`).
"""

from gateway.core import events as ev
from gateway.core import refusals
from gateway.core.brain_state import BrainState
from gateway.core.model_choices import Admit, ModelChoices
from gateway.core.turns.completion import Completion
from gateway.core.turns.dispatcher import Dispatcher
from gateway.core.turns.gate import Gate
from gateway.core.turns.lifecycle import LifecycleError, State, Step
from gateway.core.turns.live import LiveRequest
from gateway.core.turns.poison_requests import MOST_DEATHS, Failure, Suspects
from gateway.core.turns.retry import Retry
from gateway.domain.decision import Refusal
from gateway.domain.ids import Body, ReplicaId, RequestId
from gateway.domain.request import Answer

_OUTCOMES = {Step.FINISH: "finished", Step.CUT: "cut", Step.LEAVE: "client_left"}


class Attempts:
    def __init__(
        self,
        shared: BrainState,
        gate: Gate,
        dispatcher: Dispatcher,
        completion: Completion,
        models: ModelChoices,
        admit: Admit,
    ) -> None:
        self._live = shared.live
        self._sessions = shared.sessions
        self._records = shared.records
        self._gate = gate
        self._dispatcher = dispatcher
        self._completion = completion
        self._admit = admit
        self._retry = Retry(shared, gate, models, admit)
        self.suspects = Suspects(shared.fleet)

    def resume(self, live: LiveRequest, *, now: float) -> Refusal | None:
        live.unanswered = self.suspects.deaths(live.body, now=now)
        live.without += self.suspects.others(live, now=now)
        return refusals.unanswered_again() if live.unanswered >= MOST_DEATHS else None

    def _failed_at(self, live: LiveRequest, replica: ReplicaId, failure: Failure, *, now: float) -> None:
        self.suspects.failed(live, replica, failure, now=now)
        self._refuse_copies(live.body, now=now)

    def replica_gone(self, *, now: float) -> None:
        """Bodies that it may have died of have become deadly: their copies wait no longer."""
        for body in self.suspects.remembered.keys() & self._gate.waiting_room.by_body.keys():
            self._refuse_copies(body, now=now)

    def _refuse_copies(self, body: Body, *, now: float) -> None:
        waiting = self._gate.waiting_room.by_body.get(body)
        if waiting and self.suspects.deaths(body, now=now) >= MOST_DEATHS:
            for live in [self._live[request] for request in waiting]:
                self._gate.leave_waiting_room(live, now=now)
                self._completion.refuse(live, refusals.unanswered_again(), now=now)

    def _known(self, request: RequestId) -> LiveRequest:
        live = self._live.get(request)
        if live is None:
            raise LifecycleError(f"request {request} is over, or never arrived")
        return live

    def started(self, event: ev.ResponseStarted, *, now: float) -> None:
        (self._live.get(event.request) or self._known(event.request)).step(Step.START)

    def answer_went_on(
        self, event: ev.FirstTokenSeen | ev.ToolCallSeen | ev.ToolCallClosed | ev.StateMinted, *, now: float
    ) -> None:
        live = self._live.get(event.request) or self._known(event.request)
        if live.state is not State.ANSWERING:
            raise LifecycleError(f"a request that is {live.state.value} is not answered")
        if isinstance(event, ev.FirstTokenSeen):
            self._dispatcher.first_token(live, now=now)
        elif isinstance(event, ev.ToolCallSeen):
            self._sessions.call_minted(live, event.call)
        elif isinstance(event, ev.ToolCallClosed):
            self._sessions.call_closed(live, event.call, now=now)
        else:
            self._sessions.state_minted(live, event.state_id)

    def answered_at_once(self, event: ev.AnsweredAtOnce, *, now: float) -> None:
        live = self._live.get(event.request) or self._known(event.request)
        live.step(Step.START)
        if event.has_first_token:
            self._dispatcher.first_token(live, now=now)
        for state_id in event.answer.state_ids:
            self._sessions.state_minted(live, state_id)
        self._ended(live, Step.FINISH, event.answer, now=now)

    def finished(self, event: ev.ResponseFinished, *, now: float) -> None:
        live = self._live.get(event.request) or self._known(event.request)
        self._ended(live, Step.FINISH, event.answer, now=now)

    def cut(self, event: ev.ResponseCut, *, now: float) -> None:
        self._ended(self._known(event.request), Step.CUT, event.answer, now=now)

    def _ended(self, live: LiveRequest, step: Step, answer: Answer, *, now: float) -> None:
        live.step(step)
        assert live.replica is not None
        if answer.is_good and step is Step.FINISH:
            if self.suspects.remembered:
                self.suspects.forget(live.body)
        elif answer.is_fault or step is Step.CUT:
            failure = Failure.BROKEN if step is Step.CUT else Failure.ANSWERED
            self._failed_at(live, live.replica, failure, now=now)
        counted = self._dispatcher.ended(live, _OUTCOMES[step], answer, now=now)
        self._completion.over(live, counted, now=now)

    def client_left(self, event: ev.ClientLeft, *, now: float) -> None:
        live, answer = self._known(event.request), event.answer
        was = live.state
        live.step(Step.LEAVE)
        if was is State.WAITING:
            self._gate.leave_waiting_room(live, now=now)
            self._records.left_waiting(live, now=now)
        elif was is State.PREFILLING:
            self._dispatcher.leg_ended(live, None, _OUTCOMES[Step.LEAVE], is_fault=None, now=now)
            self._records.left_waiting(live, now=now)
        else:
            if live.replica is not None:
                self._failed_at(live, live.replica, Failure.LEFT, now=now)
            answer = self._dispatcher.ended(live, _OUTCOMES[Step.LEAVE], answer, now=now)
        self._completion.over(live, answer, now=now)

    def leg_ended(self, event: ev.PrefillLegEnded, *, now: float) -> None:
        live = self._known(event.request)
        live.step(Step.HAND_OVER)
        outcome = "ready" if event.usage is not None else "failed"
        replica = self._dispatcher.leg_ended(live, event.usage, outcome, is_fault=event.is_fault, now=now)
        if event.is_fault:
            live.unanswered += 1
            self._failed_at(live, replica, Failure.BROKEN, now=now)
        self._admit(live, now=now)

    def failed(self, event: ev.AttemptFailed, *, now: float) -> None:
        live = self._known(event.request)
        live.step(Step.FAIL)
        assert live.replica is not None
        times = event.resends + event.was_sent
        if times:
            failure = Failure.TIMED_OUT if event.timed_out else Failure.BROKEN
            self._failed_at(live, live.replica, failure, now=now)
        self._dispatcher.ended(live, "failed", None, blames_replica=not event.is_local, now=now)
        live.attempts += event.resends
        live.unanswered += times
        # Others may have sent the same body.
        deaths = self.suspects.deaths(live.body, now=now) if times else 0
        if live.route is not None:
            live.route.choice.begun -= 1
        if event.is_local:
            live.tried.pop()  # nothing speaks against this replica, and it may be the session's home
        is_poison = max(live.unanswered, deaths) >= MOST_DEATHS
        if self._retry.sends_again(live, event, is_poison=is_poison, now=now):
            return
        # A kept connection and a fresh one of one replica broke: it died once, and its client may ask again.
        is_one_death = live.unanswered == times and deaths < MOST_DEATHS
        refusal = (
            refusals.unanswered_again() if is_poison and not is_one_death else refusals.attempt_failed(event)
        )
        self._completion.refuse(live, refusal, now=now)
