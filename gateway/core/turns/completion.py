"""The end of requests and sessions: every book closes, and the policies learn.

Invariants: each request ends once; it lives no more then, and its session knows, whatever fails on the way; a
session that ended is in none of the books that policies keep.
"""

from collections.abc import Iterable

from gateway.admission.turn_request import TurnOutcome
from gateway.core.brain_state import BrainState
from gateway.core.commands import Refuse
from gateway.core.optional.speculative_prefill import PrefillsAhead
from gateway.core.sessions.session_book import TurnEnd
from gateway.core.to_engines import ToEngines
from gateway.core.turns.lifecycle import Step
from gateway.core.turns.live import LiveRequest
from gateway.domain import records as rec
from gateway.domain.decision import Refusal
from gateway.domain.ids import SessionId
from gateway.domain.request import Answer, Usage, Work
from gateway.errors import http_status

_NO_USAGE = Usage()


class Completion:
    def __init__(self, shared: BrainState, ahead: PrefillsAhead, to_engines: ToEngines) -> None:
        self._live = shared.live
        self._sessions = shared.sessions
        self._admission = shared.admission
        self._placement = shared.placement
        self._forecasts = shared.forecasts
        self._ranks = shared.ranks
        self._migrations = shared.migrations
        self._limits = shared.session_limits
        self._out, self._records = shared.out, shared.records
        self._ahead = ahead
        self._to_engines = to_engines

    def refuse(self, live: LiveRequest, refusal: Refusal, *, now: float) -> None:
        live.step(Step.REFUSE)
        self._records.refused(live, refusal, now=now)
        self._out.append(
            Refuse(
                request=live.request,
                refusal=refusal,
                session=live.session,
                waited_s=live.waited_s,
                bound=live.bound,
            )
        )
        reply = Answer(status=http_status(refusal.reason), retry_after_s=refusal.retry_after_s)
        self.over(live, reply, now=now)

    def over(self, live: LiveRequest, answer: Answer | None, *, now: float) -> None:
        """It is in a final state. `answer`: that its client got; None if it left before there was one."""
        del self._live[live.request]
        try:
            if self._limits.is_on:
                self._limits.turn_over(live, answer)
        finally:
            end, records = self._sessions.turn_ended(live, answer, now=now)
            try:
                self._learn(live, answer, end, now=now)
            finally:
                if records or self._sessions.ran or self._sessions.due_hints:
                    self.emit(records, now=now)
        if live.session is None:
            return
        if self._limits.is_on:
            self.free_place(live.session.session, now=now)
        if self._ahead.config.enabled and answer is not None and answer.is_good:
            behind = self._sessions.conversations.behind(live.session)
            if behind is not None and behind[1].tools:
                self._ahead.paused(live, answer.usage, *behind, now=now)

    def _learn(self, live: LiveRequest, answer: Answer | None, end: TurnEnd, *, now: float) -> None:
        if self._migrations.known:
            self._migrations.over(live.request)
        usage = answer.usage if answer is not None else _NO_USAGE
        if answer is None and (live.tried or live.had_leg):  # which computed its prompt
            usage = self._forecasts.prompt_alone(live)
        if live.facts.work is Work.POOL:
            self._admission.used(live.tenant, usage, now=now)
        if live.session is None:
            return
        is_tunnel = live.facts.work is Work.TUNNEL  # of which nothing is known but its time
        is_answered = answer is not None and answer.is_good and not is_tunnel
        outcome = None
        if live.tried:
            outcome = TurnOutcome(
                was_answered=is_answered,
                has_calls=end.has_calls,
                silence=end.silence,
                replica=live.tried[-1],
                usage=usage,
                held=end.held,
                grown=end.grown,
                left=live.left,
                prefill_s=self._forecasts.prefill_s(live.tried[-1], usage) if is_answered else None,
                alone=live.alone if is_answered else None,
            )
            if answer is not None and is_answered:
                silence, tried = end.silence, live.tried[-1]
                pauses = silence.has_tools if silence is not None else end.has_calls
                self._placement.turn_over(live.session, tried, answer.usage, pauses=pauses, now=now)
        self._admission.turn_over(live.request, outcome, now=now)
        if outcome is None:
            self._admission.used(live.tenant, usage, now=now)
        if self._ahead.config.enabled:
            self._ahead.turn_over(live.request, answer.usage if answer and is_answered else None, now=now)
            if live.tried:
                self._ahead.look_for_slack(live.tried[-1], now=now)

    def emit(self, records: Iterable[rec.Record], *, now: float) -> None:
        for record in records:
            if type(record) is rec.SessionEnded:
                self._admission.session_over(record.session, now=now)
                self._placement.ledger.session_ended(record.session)
                self._ranks.session_ended(record.session)
                self._ahead.session_over(record.session, now=now)
                self._limits.session_over(record.session)
        for run in self._sessions.ran:
            self._admission.tools_ran(run.session, run.names, run.duration_s)
        self._sessions.ran.clear()
        self._records.extend(records)
        if self._sessions.due_hints:
            self._to_engines.send_due_hints()

    def free_place(self, session_id: SessionId, *, now: float) -> None:
        session = self._sessions.sessions.get(session_id)
        if self._limits.is_stopped(session_id, now=now) and session is not None and not session.live_turns:
            self._admission.session_over(session_id, now=now)
