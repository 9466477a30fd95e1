"""Session identity: which run and which conversation does this turn belong to, and how sure are we?

Source: ours (docs/design/sessions.md). The first hit wins:

1. a stated id (a header or body field of a known convention), scoped by tenant;
2. a failed attempt that this request repeats;
3. protocol state or a call id that we minted (`content_matching.py`);
4. our own answer after a known conversation, or that answer alone (`content_matching.py`);
5. otherwise the turn starts a new session.

Deviations: a *session* is the whole agent run, the unit of admission: a main conversation, sub-agents, side
requests, and the rest after a compaction. Each conversation is a *thread* of it. A stated id names the run;
with unrelated conversations at the same time it names a group of runs, whose members differ by content.

Invariants: a turn joins a session only with proof; a guess is noted at the turn's new session, and only
there; every lookup is scoped by tenant; turns of two stated ids never meet; at most `max_sessions` are kept,
of each at most `max_turns`; a session with a live turn is never forgotten; after forgetting, a later turn
starts anew.
"""

from collections.abc import Iterator
from typing import Final

from gateway.domain.decision import Edge, Guess, SessionRef
from gateway.domain.ids import RequestId, SessionId, TenantId
from gateway.domain.model_choice import Choice
from gateway.domain.request import Answer, RequestFacts
from gateway.domain.turn_trace import TurnTrace
from gateway.identity.evidence import ends_with_text, minted_ids
from gateway.wire.hashing import hash_text
from gateway.workflow.content_matching import ContentSearch
from gateway.workflow.session_matching import identify
from gateway.workflow.session_store import SessionsConfig, SessionStore
from gateway.workflow.traces import Traces, add, drop, holders
from gateway.workflow.turns import Identity, Outcome, Session, Thread, Turn

__all__ = ["Session", "Sessions", "SessionsConfig"]

# Least confidence to join a session; below it the turn starts one of its own, with the guess noted. All
# values above 0.8 and up to 0.95 do the same (docs/design/sessions.md).
ACTS_FROM: Final = 0.9
# Fields that a turn and its trace have in common.
_HANDED_ON: Final = (
    *("request", "tail", "body", "agent", "client", "offers_tools", "is_opening", "is_side", "attempt"),
    *("text", "chars", "minted", "calls", "has_secrets", "has_private_answer"),
)


class Sessions(SessionStore):
    def __init__(self, config: SessionsConfig, ids: Iterator[SessionId]) -> None:
        super().__init__(config, ids)
        self._live: dict[RequestId, Turn] = {}

    def arrived(
        self,
        request: RequestId,
        tenant: TenantId,
        facts: RequestFacts,
        state_session: SessionId | None = None,
        *,
        now: float,
    ) -> tuple[Session, SessionRef]:
        """`state_session`: of the state that this turn builds on, if known."""
        traces = self._traces.get(tenant) or self.traces_of(tenant)
        known = self.get(state_session) if state_session is not None else None
        found = identify(self, ContentSearch(traces, facts, now=now), tenant, known)
        is_guess = found.session is not None and found.confidence < ACTS_FROM
        acted = Identity() if is_guess else found
        session = acted.session or self.start(tenant, facts.explicit, acted, now=now)
        thread = acted.thread or self.branch(session, facts, acted)
        guess = self._guess(found, session, thread) if is_guess else None
        turn = self._live[request] = self._place(request, facts, thread, found, now=now)
        session.log.append(turn)
        session.turns += 1
        session.live_turns += 1
        traces.add_arrival(turn)
        if facts.attempt:
            traces.counting.add(facts.client)
        if len(session.log) > self._config.max_turns:
            self._trim(session, traces)
        self.touch(session, now=now)
        return session, SessionRef(
            session=session.id,
            source=acted.source,
            confidence=acted.confidence,
            thread=thread.id,
            edge=acted.edge,
            parent=acted.parent.request if acted.parent is not None else None,
            guess=guess,
        )

    def _guess(self, found: Identity, session: Session, thread: Thread) -> Guess:
        """Notes that the new session may be a part of the found one; nothing is decided by it."""
        assert found.session is not None
        session.may_be_part_of(found.session)
        guessed = found.thread
        if guessed is not None:
            thread.head, thread.head_tokens = guessed.head, guessed.head_tokens
            thread.agent_type = guessed.agent_type
        return Guess(
            session=found.session.id,
            thread=guessed.id if guessed is not None else None,
            source=found.source,
            confidence=found.confidence,
            edge=found.edge,
            parent=found.parent.request if found.parent is not None else None,
        )

    def learn_id(self, request: RequestId, minted: str, *, is_call: bool) -> int | None:
        """`minted`: of a call, or of stored state. Its hash, if it is new."""
        turn, key = self._live.get(request), hash_text(minted)
        if turn is None or key in turn.minted:
            return None
        traces = self._traces[turn.thread.session.tenant]
        turn.minted = (*turn.minted, key)
        turn.calls += is_call
        add(traces.minted, key, turn)
        if len(turn.minted) > self._config.max_call_ids:
            drop(traces.minted, turn.minted[0], turn)
            turn.minted = turn.minted[1:]
        return key

    def ended(
        self, request: RequestId, answer: Answer | None, outcome: Outcome, *, now: float
    ) -> Turn | None:
        turn = self._live.pop(request, None)
        if turn is None:
            return None
        session = turn.thread.session
        session.live_turns -= 1
        session.troubles += outcome is not Outcome.ANSWERED
        turn.outcome, turn.ended_s = outcome, now
        if answer is not None:
            usage = answer.usage
            session.prompt_tokens += usage.prompt_tokens or 0
            session.output_tokens += usage.output_tokens or 0
            if usage.cached_tokens is not None:
                session.cached_tokens = (session.cached_tokens or 0) + usage.cached_tokens
            if answer.retry_after_s is not None:
                turn.due_s = now + answer.retry_after_s
            if answer.status < 400:
                turn.text, turn.chars = answer.utterance.text, answer.utterance.chars
        traces = self._traces[session.tenant]
        traces.add_answer(turn)
        if len(session.log) > self._config.max_turns:
            self._trim(session, traces)
        self.touch(session, now=now)
        return turn

    # --- for the other gateways ------------------------------------------------------------------

    def knows(self, tenant: TenantId, facts: RequestFacts, *, now: float) -> bool:
        """By its newest evidence: older may be of another conversation with the same beginning."""
        stated = facts.explicit
        if stated is not None:
            run = (tenant, stated.schema, stated.parent or stated.session)
            return self.find_stated(tenant, stated) is not None or self.find_explicit(run) is not None
        traces = self._traces.get(tenant)
        if traces is None:
            return False
        if not ends_with_text(facts):
            minted = list(minted_ids(facts))
            if minted:
                return not traces.minted.keys().isdisjoint(minted)
        for block in facts.transcript.blocks[:1]:
            known = holders(traces.tails, block.tail or facts.transcript.agent)
            return any(turn.text == block.text for turn in known)
        return ContentSearch(traces, facts, now=now).retried() is not None

    def trace_of(self, turn: Turn) -> TurnTrace:
        session, thread = turn.session, turn.thread
        traces = self.traces_of(session.tenant)
        return TurnTrace(
            tenant=session.tenant,
            session=session.id,
            source=session.source._value_,  # `value` is a call of four functions
            confidence=session.confidence,
            keys=tuple([key[1:] for key in session.explicit_keys]),
            parent=session.parent,
            turns=session.turns,
            thread=thread.id,
            thread_number=session.thread_count,
            name=thread.name,
            outcome=turn.outcome._value_,
            is_secret=traces.is_secret(turn),
            is_twin=turn.is_twin or traces.has_twin(turn),
            **{name: getattr(turn, name) for name in _HANDED_ON},
            runs_on=tuple([(name, each.target, each.is_fallback) for name, each in session.runs_on.items()]),
        )

    def adopt(self, trace: TurnTrace, *, now: float) -> Session | None:
        """Adopts another gateway's turn, in order; returns its session, if that is new here."""
        known = self.get(trace.session)
        session = known or self.restore(trace, now=now)
        for name, target, is_fallback in trace.runs_on:
            session.runs_on[name] = Choice(target, is_fallback, begun=1)
        thread = self.thread_of(session, trace)
        if any(turn.request == trace.request for turn in session.log):
            return None
        turn = Turn(
            thread=thread,
            arrived_s=now,
            ended_s=now,
            first_s=now,
            outcome=Outcome(trace.outcome),
            is_twin=trace.is_twin,
            **{name: getattr(trace, name) for name in _HANDED_ON},
        )
        session.log.append(turn)
        if not turn.is_side:
            if thread.tip is not None:
                thread.tip.next, thread.tip.is_answered = turn, True
            thread.tip = turn
        self.traces_of(trace.tenant).adopt(turn, is_secret=trace.is_secret)
        self.touch(session, now=now)
        return session if known is None else None

    def _place(
        self, request: RequestId, facts: RequestFacts, thread: Thread, found: Identity, *, now: float
    ) -> Turn:
        script, parent, before = facts.transcript, found.parent, thread.tip
        is_guess = found.session not in (None, thread.session)
        turn = Turn(
            request=request,
            thread=thread,
            arrived_s=now,
            first_s=now,
            tail=script.tail or script.agent,
            body=script.body,
            # The same object for all turns of a thread saves memory.
            agent=before.agent if before is not None and before.agent == script.agent else script.agent,
            client=before.client if before is not None and before.client == facts.client else facts.client,
            offers_tools=facts.tool_count > 0,
            is_opening=parent is None or found.edge in (Edge.SPAWNED, Edge.SERVES),
            is_side=found.edge is Edge.SERVES,
            attempt=facts.attempt,
            is_guessed=is_guess,
            has_secrets=found.has_secrets,
            has_private_answer=found.has_private_answer,
        )
        if parent is not None and found.edge is Edge.RETRIES:
            parent.retried_by = turn
            turn.first_s = parent.first_s
            turn.is_opening, turn.is_side = parent.is_opening, parent.is_side
        elif parent is not None and found.edge is not Edge.SPAWNED and not turn.is_side:
            if not is_guess:
                parent.is_answered = True
            if not (is_guess and parent.is_continued):
                parent.next = turn
        if is_guess or not turn.is_side:
            thread.tip = turn
            thread.agent = script.agent
        return turn

    def _trim(self, session: Session, traces: Traces) -> None:
        """The newest turn of each thread goes last, a live one never."""
        while len(session.log) > self._config.max_turns:
            over = [turn for turn in session.log if turn.outcome is not Outcome.LIVE]
            if not over:
                return
            oldest = next((turn for turn in over if turn.thread.tip is not turn), over[0])
            session.log.remove(oldest)
            traces.remove(oldest)
