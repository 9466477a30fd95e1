"""What others say of sessions: whoever knows it that one is over, an operator that one is to stop, another
gateway what one of its own did."""

from typing import assert_never

from gateway.core import events as ev
from gateway.core import refusals
from gateway.core.brain_state import BrainState
from gateway.core.commands import Cancel
from gateway.core.turns.completion import Completion
from gateway.core.turns.gate import Gate
from gateway.core.turns.lifecycle import State
from gateway.domain import records as rec
from gateway.domain.decision import Edge, SessionRef, SessionSource
from gateway.domain.request import Usage
from gateway.domain.turn_trace import TurnTrace

Event = ev.SessionFinished | ev.SessionStopped | ev.SessionAdopted | ev.AmbiguousEvidence


class SessionControl:
    def __init__(self, shared: BrainState, gate: Gate, completion: Completion) -> None:
        self._live = shared.live
        self._fleet = shared.fleet
        self._sessions = shared.sessions
        self._placement = shared.placement
        self._limits = shared.session_limits
        self._out = shared.out
        self._gate = gate
        self._completion = completion

    def take_in(self, event: Event, *, now: float) -> None:
        match event:
            case ev.SessionFinished():
                self._completion.emit(self._sessions.finish(event.session, now=now), now=now)
            case ev.SessionStopped():
                self._stop(event, now=now)
            case ev.AmbiguousEvidence():
                self._sessions.sessions.twins_found(event.names)
            case ev.SessionAdopted():
                self._adopt(event.trace, now=now)
            case _:
                assert_never(event)

    def _stop(self, event: ev.SessionStopped, *, now: float) -> None:
        """Refuses what waits of it, and cancels what runs if the operator wants it; later turns are
        refused."""
        session = self._sessions.sessions.get(event.session)
        if session is None:
            return
        self._limits.stop(session.id, until_s=now + event.for_s)
        cancelled = 0
        for live in self._limits.of(session.id, self._live):
            if live.state is State.WAITING:
                self._gate.leave_waiting_room(live, now=now)
                self._completion.refuse(live, refusals.stopped(), now=now)
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
        self._completion.free_place(session.id, now=now)

    def _adopt(self, trace: TurnTrace, *, now: float) -> None:
        self._completion.emit(self._sessions.adopt(trace, now=now), now=now)
        if trace.replica is not None and self._fleet.get(trace.replica) is not None and not trace.is_side:
            session = SessionRef(
                session=trace.session,
                source=SessionSource(trace.source),
                confidence=trace.confidence,
                thread=trace.thread,
                edge=Edge.CONTINUES,
            )
            usage = Usage(prompt_tokens=trace.prompt_tokens, output_tokens=trace.output_tokens)
            ledger = self._placement.ledger
            ledger.settle(session, trace.replica)
            ledger.turn_over((trace.session, trace.thread), trace.replica, usage)
            ledger.expect_no_more(trace.session)  # by us: its own gateway counts it
        if trace.stopped_for_s:
            self._limits.stop(trace.session, until_s=now + trace.stopped_for_s)
