"""The books of sessions: identity, tool phases and stored state, kept together per turn.

The coordinator tells it what happened to a turn; it answers with the records that follow from that.

Invariants: `live_turns` of a session is the number of its requests in the coordinator; a session that
ends takes its open tool calls with it; every `session_start` is followed by at most one `session_end`.
"""

from collections.abc import Container
from typing import NamedTuple

from gateway.core.sessions.client_habits import Conduct
from gateway.core.sessions.publishing import Publishing
from gateway.core.turns.lifecycle import State
from gateway.core.turns.live import LiveRequest
from gateway.domain import records as rec
from gateway.domain.agent_key import agent_key
from gateway.domain.decision import Edge
from gateway.domain.ids import ReplicaId, SessionId, TenantId
from gateway.domain.request import Answer, Claims, RequestFacts, ToolCall
from gateway.domain.turn_trace import TurnTrace
from gateway.identity.counter_ids import is_counter_like
from gateway.routing.state_residence import Residence, StateKey, StateResidence
from gateway.tool_probe.boundaries import ToolBoundaries
from gateway.tool_probe.call_records import ToolRun
from gateway.tool_probe.text_calls import LateCalls
from gateway.workflow.aeg.graph import HeldContext, Silence
from gateway.workflow.aeg.graphs import Tier
from gateway.workflow.conversations import Conversations, StepPrediction
from gateway.workflow.engine_hints import Hints
from gateway.workflow.sessions import Session, Sessions
from gateway.workflow.turns import Outcome


class TurnEnd(NamedTuple):
    """How a turn left its session: one word of it for whoever reads it."""

    has_calls: bool
    """It asks for tools, by native calls or such as its text holds."""
    silence: Silence | None = None
    """None if it is not silent, or nothing is known."""
    held: HeldContext | None = None
    """None if nothing is known."""
    grown: float | None = None
    """By so many is the turn's conversation longer than before; None if it is its first."""


class SessionBook:
    def __init__(
        self,
        sessions: Sessions,
        tools: ToolBoundaries,
        residence: StateResidence,
        conversations: Conversations,
        hints: Hints,
        *,
        trusted: Container[TenantId] | None = None,
        publishes: bool = False,
    ) -> None:
        """`trusted`: whose claims of how long to hold state, and whether it is used again, count; None:
        everybody's. `publishes`: there are other gateways, which must find our sessions."""
        self.sessions = sessions
        self.tools = tools
        self.conversations = conversations
        self.hints = hints
        self.residence = residence
        self.trusted = trusted
        # Hints that are to be sent, and to whom.
        self.due_hints: list[tuple[ReplicaId, str]] = []
        self.publishing = Publishing(sessions) if publishes else None
        self.conduct = Conduct()
        # What was learned of tools, for whoever else learns from it.
        self.ran: list[ToolRun] = []

    def find_home(self, tenant: TenantId, facts: RequestFacts) -> Residence | None:
        for state_id in facts.state_ids:
            if (home := self.residence.find(tenant, state_id)) is not None:
                return home
        return None

    def turn_arrived(self, live: LiveRequest, home: Residence | None, *, now: float) -> list[rec.Record]:
        """Finds its session, and notes at the request which one that is, since when it is there, and of which
        type of agent."""
        turn, tenant, facts = live.request, live.tenant, live.facts
        session, ref = self.sessions.arrived(turn, tenant, facts, home.session if home else None, now=now)
        live.session, live.session_id, live.task_arrived_s = ref, session.id, session.started_s
        self.conduct.arrived(session.log[-1], ref, facts)
        out: list[rec.Record] = []
        if session.turns == 1:
            out.append(_session_start(session, now=now))
        if self.publishing is not None and ref.edge in (Edge.OPENS, Edge.SPAWNED):
            self.publishing.opened(turn, tenant, facts.explicit)
        out.append(
            rec.TurnArrived(
                at_s=now,
                turn=turn,
                session=session.id,
                tenant=tenant,
                protocol=facts.protocol,
                model=facts.model,
                source=ref.source,
                confidence=ref.confidence,
                body_bytes=facts.body_bytes,
                message_count=facts.message_count,
                tool_count=facts.tool_count,
                thread=ref.thread,
                edge=ref.edge,
                parent=ref.parent,
                claims=facts.claims,
                guess=ref.guess,
                agent=f"{facts.transcript.agent_type:016x}" if facts.transcript.agent_type else "",
                is_streamed=facts.stream,
                client=facts.client_name,
                changed=session.log[-1].changed,
            )
        )
        went_on = ref.parent if ref.edge is Edge.CONTINUES else None
        closed = self.tools.results_came(session.id, facts.tool_result_ids, went_on=went_on, now=now)
        thread = self.conversations.arrived(ref, facts, live.owner, now=now)
        known = thread or self.conversations.thread(ref.thread)
        live.agent = known.agent if known is not None else agent_key(ref, facts, live.owner)
        if closed is not None:
            new = facts.transcript.new
            key = thread.key if thread is not None else 0
            self.ran.append(ToolRun(session.id, key, closed.names, closed.duration_s))
            out.append(
                rec.ToolEnd(
                    at_s=now,
                    session=session.id,
                    turn=turn,
                    names=closed.names,
                    calls=closed.ids,
                    duration_ms=closed.duration_s * 1e3,
                    observation_bytes=new.size,
                    has_failed=new.has_failed,
                )
            )
            out.append(rec.ToolNum(at_s=now, active=self.tools.active_sessions))
        if went_on is not None and known is not None:
            if went_on in known.text_calls.doubts:
                late_calls = known.text_calls.came(went_on, turn, facts.transcript.new, now=now)
                out += self._recognised(late_calls, now=now) if late_calls else ()
        return out

    def _recognised(self, late_calls: list[LateCalls], *, now: float) -> list[rec.Record]:
        out: list[rec.Record] = []
        for late in late_calls:
            late_s = now - late.came_s
            if not late_s:  # else it is not known who ran beside them
                self.ran.append(ToolRun(late.session, late.agent, late.names, late.duration_s))
            out.append(
                rec.ToolStart(
                    at_s=now,
                    session=late.session,
                    turn=late.made_by,
                    names=late.names,
                    late_s=late_s + late.duration_s,
                )
            )
            out.append(
                rec.ToolEnd(
                    at_s=now,
                    session=late.session,
                    turn=late.came,
                    names=late.names,
                    duration_ms=late.duration_s * 1e3,
                    observation_bytes=late.new.size,
                    has_failed=late.new.has_failed,
                    late_s=late_s,
                )
            )
        return out

    def call_minted(self, live: LiveRequest, call: ToolCall) -> None:
        live.calls_seen.append(call)
        minted = self.sessions.learn_id(live.request, call.id, is_call=True)
        if self.publishing is not None and minted is not None and not is_counter_like(call.id):
            self.publishing.minted(live, minted)

    def call_closed(self, live: LiveRequest, call: ToolCall, *, now: float) -> None:
        if live.session is not None and self.sessions.get(live.session.session) is not None:
            self.tools.ready(live.session.session, live.request, call, now=now)

    def state_minted(self, live: LiveRequest, state_id: str) -> None:
        assert live.replica is not None
        self.residence.learn(live.tenant, state_id, Residence(live.replica, live.session_id))
        minted = self.sessions.learn_id(live.request, state_id, is_call=False)
        if self.publishing is not None and minted is not None:
            self.publishing.minted(live, minted)

    def adopt(self, trace: TurnTrace, *, now: float) -> list[rec.Record]:
        for key, replica in trace.states:
            self.residence.restore([(StateKey(key), replica)])
        session = self.sessions.adopt(trace, now=now)
        return [_session_start(session, now=now)] if session is not None else []

    def turn_ended(
        self, live: LiveRequest, answer: Answer | None, *, now: float
    ) -> tuple[TurnEnd, list[rec.Record]]:
        """The turn is over, however it ended; `answer` is what was passed on of its response."""
        session = self.sessions.get(live.session.session) if live.session is not None else None
        if session is None:
            return TurnEnd(has_calls=answer is not None and bool(answer.tool_calls)), []
        for call in answer.tool_calls if answer is not None and answer.status < 400 else ():
            if call not in live.calls_seen:
                self.call_minted(live, call)
        turn = self.sessions.ended(live.request, answer, _outcome(live, answer), now=now)
        has_left = live.state is State.LEFT and not live.saw_first_token
        self.conduct.ended(turn, live.facts, answer, left_after_s=now - live.arrived_s if has_left else None)
        assert live.session is not None
        if self.publishing is not None and turn is not None:
            self.publishing.ended(live, turn, answer)
        conversations = self.conversations
        pause = conversations.answered(live.session, live.facts, answer, now=now)
        has_calls = bool(pause.tools) if pause is not None else answer is not None and bool(answer.tool_calls)
        silence = conversations.silence(session.id, now=now)
        thread = conversations.thread(live.session.thread) if pause is not None else None
        grown = thread.grown if thread is not None else None
        end = TurnEnd(has_calls, silence, conversations.held(session.id), grown)
        stated = live.facts.explicit
        is_final = stated is not None and stated.final and stated.parent is None  # of the whole run
        if is_final and answer is not None and answer.is_good:
            session.is_final = True  # a final turn that got no answer will be sent again
        out: list[rec.Record] = []
        if pause is not None:
            out += self._paused(live, pause, now=now)
        if session.is_final and not session.live_turns:
            out += self._end(session, "finished", now=now)
        else:
            # A client may act on a call from a response that was cut: any that was passed on counts.
            calls = answer.tool_calls if answer is not None else ()
            names = self.tools.opened(session.id, live.request, calls, now=now)
            if not names and pause is not None and answer is not None and not calls:
                names = pause.tools
                self.tools.text_called(session.id, live.request, names, now=now)
                if not names:
                    conversations.doubted(live.session, live.request, live.facts, answer, now=now)
            if names:
                out.append(
                    rec.ToolStart(
                        at_s=now,
                        session=session.id,
                        turn=live.request,
                        names=names,
                        ready_ms=self._ready_ms(live, now=now),
                    )
                )
                out.append(rec.ToolNum(at_s=now, active=self.tools.active_sessions))
        if self.sessions.are_too_many:  # the last live turn of one of them may just have ended
            out += self.expire(now=now)
        return end, out

    def hint_for(
        self, live: LiveRequest, replica: ReplicaId, service_class: str | None, *, now: float
    ) -> str | None:
        assert live.session is not None
        if (left := self.hints.where_it_was(live.session, replica)) is not None:
            self.due_hints.append(left)
        thread, stated = self.conversations.thread(live.session.thread), live.facts.explicit
        if thread is None:
            return None
        hint = self.hints.with_request(
            live.session,
            thread,
            replica,
            age_s=now - live.task_arrived_s,
            service_class=service_class,
            is_final=stated is not None and stated.final,
            stated=self._believed(live),
        )
        live.is_hinted = hint is not None
        return hint

    def finish(self, session_id: SessionId, *, now: float) -> list[rec.Record]:
        """Ends a session, at once or with its last live turn. An unknown session is no error."""
        session = self.sessions.get(session_id)
        if session is None:
            return []
        if session.live_turns:
            session.is_final = True
            return []
        return self._end(session, "finished", now=now)

    def expire(self, *, now: float) -> list[rec.Record]:
        out: list[rec.Record] = []
        for session, reason in self.sessions.expire(now=now):
            out += self._ended(session, reason, now=now)
        return out

    def next_expiry_s(self) -> float | None:
        return self.sessions.next_expiry_s()

    def _paused(self, live: LiveRequest, pause: StepPrediction, *, now: float) -> list[rec.Record]:
        assert live.session is not None
        decision = None
        thread = self.conversations.thread(live.session.thread) if live.is_hinted else None
        if thread is not None and live.tried:
            replica = live.tried[-1]
            decision = self.hints.retention(thread, pause, replica, self._believed(live))
            session, of = live.session.session, live.session.thread
            if (hint := self.hints.write(session, of, decision)) is not None:
                self.due_hints.append((replica, hint))
        if pause.tier is Tier.UNKNOWN:
            return []
        return [
            rec.StepPredicted(
                at_s=now,
                session=live.session.session,
                thread=live.session.thread,
                turn=live.request,
                tools=pause.tools,
                next=pause.next,
                confidence=pause.confidence,
                ends=pause.ends,
                reuse=decision.reuse if decision is not None else None,
                retain_s=decision.retain_s if decision is not None else None,
                returns_in_s=decision.returns_in_s if decision is not None else None,
            )
        ]

    def _believed(self, live: LiveRequest) -> Claims | None:
        is_trusted = self.trusted is None or live.tenant in self.trusted
        return live.facts.claims if is_trusted else None

    def _end(self, session: Session, reason: str, *, now: float) -> list[rec.Record]:
        if session.is_stopped(now=now):
            session.is_final = False
            return []
        self.sessions.forget(session)
        return self._ended(session, reason, now=now)

    def _ended(self, session: Session, reason: str, *, now: float) -> list[rec.Record]:
        was_active = bool(self.tools.open_calls(session.id))
        self.tools.forget(session.id)
        self.conversations.session_over(session.id)
        self.due_hints += self.hints.session_over(session.id)
        out: list[rec.Record] = [
            rec.SessionEnded(at_s=now, session=session.id, turns=session.turns, reason=reason)
        ]
        return [*out, rec.ToolNum(at_s=now, active=self.tools.active_sessions)] if was_active else out

    def _ready_ms(self, live: LiveRequest, *, now: float) -> tuple[float, ...]:
        if live.state is not State.FINISHED or live.session is None:
            return ()
        calls, turn = self.tools.open_calls(live.session.session), live.request
        return tuple(
            [(now - each.ready_s) * 1e3 for each in calls if each.turn == turn and each.ready_s is not None]
        )


def _outcome(live: LiveRequest, answer: Answer | None) -> Outcome:
    if answer is None or answer.status >= 400:
        return Outcome.FAILED
    if answer.has_terminal and answer.is_good:
        return Outcome.ANSWERED  # a close behind the last event is no departure
    if live.state is State.LEFT or live.state is State.CUT:
        return Outcome.CUT
    # It ended cleanly, but in the middle: some clients take what they have, others ask again.
    has_content = bool(answer.tool_calls) or answer.utterance.text != 0
    return Outcome.CUT if has_content else Outcome.ANSWERED if answer.is_good else Outcome.FAILED


def _session_start(session: Session, *, now: float) -> rec.SessionStarted:
    return rec.SessionStarted(
        at_s=now,
        session=session.id,
        tenant=session.tenant,
        source=session.source,
        confidence=session.confidence,
        schema=session.schema,
        parent=session.parent,
    )
