"""Do the brain's books agree with each other? A check of its whole state, for tests and simulations.

It reads everything, so a server does not call it.
"""

from collections import Counter

from gateway.core.coordinator import Coordinator
from gateway.core.turns.dispatcher import CAPACITY_FREE_WORK
from gateway.core.turns.lifecycle import State
from gateway.domain.decision import WaitReason
from gateway.domain.ids import ReplicaId, SessionId

_LIVING = (State.WAITING, State.PREFILLING, State.SUBMITTED, State.ANSWERING)


def check_books(brain: Coordinator) -> None:
    """Raises AssertionError, saying what is wrong. To be called between events."""
    _check_requests(brain)
    _check_waiting_room(brain)
    _check_sessions(brain)
    if (bounds := brain.session_limits.bounds) is not None:
        assert bounds.turns.keys() <= brain.live.keys(), "something is reserved for turns that are over"
        known = {session.id for session in brain.sessions.sessions.newest_first()}
        assert bounds.sessions.keys() <= known, "sessions are counted that are over"


def _check_requests(brain: Coordinator) -> None:
    running: Counter[ReplicaId] = Counter()
    light: Counter[ReplicaId] = Counter()
    for request, live in brain.live.items():
        assert live.request == request
        assert live.state in _LIVING, f"{request} is {live.state}"
        is_waiting = live.state is State.WAITING
        assert (request in brain.waiting_room) == is_waiting, f"{request}: the waiting room disagrees"
        is_prefilling = live.state is State.PREFILLING
        assert (request in brain.legs) == is_prefilling, f"{request} is {live.state}: its prefill leg"
        is_nowhere = is_waiting or is_prefilling
        assert (live.replica is None) == is_nowhere, f"{request} is {live.state} on {live.replica}"
        assert len(set(live.tried)) == len(live.tried), f"{request} was sent twice to a replica"
        assert live.home is None or live.tried in ([], [live.home]), f"{request} left its home"
        if live.replica is not None:
            (light if live.facts.work in CAPACITY_FREE_WORK else running)[live.replica] += 1
            assert live.tried[-1] == live.replica
    for state in brain.fleet:
        here = running[state.facts.id] + brain.legs.at(state.facts.id)
        assert state.running == here, f"{state.facts.id} runs {here}, its book says {state.running}"
        is_light = light[state.facts.id] + brain.ahead.at(state.facts.id)
        assert state.light == is_light, f"{state.facts.id}: light requests"


def _check_waiting_room(brain: Coordinator) -> None:
    room = brain.waiting_room
    deadlines = []
    for waiting in room:
        assert waiting.request in brain.live, f"{waiting.request} waits but does not live"
        assert waiting.lane == brain.live[waiting.request].lane, f"{waiting.request} waits in a wrong lane"
        waits_for_one = waiting.is_held or brain.live[waiting.request].waits_for is WaitReason.NO_REPLICA
        assert waits_for_one or brain.gate.candidates(waiting.lane), f"{waiting.request} waits for nobody"
        free = brain.gate.with_room(waiting.lane)
        assert waiting.is_held or not free, f"{waiting.request} waits though {free} may run it"
        deadlines.append(waiting.deadline_s)
    assert room.next_deadline_s() == min(deadlines, default=None)
    assert room.body_bytes == sum(waiting.body_bytes for waiting in room)


def _check_sessions(brain: Coordinator) -> None:
    book = brain.sessions
    live_turns: Counter[SessionId] = Counter()
    for live in brain.live.values():
        if live.session_id is not None:
            live_turns[live.session_id] += 1
            session = book.sessions.get(live.session_id)
            assert session is not None, f"{live.session_id} was forgotten with a live turn"
            assert session.tenant == live.tenant, f"{live.request} is in another tenant's session"
    active = 0
    for session in book.sessions.newest_first():
        here = live_turns[session.id]
        assert session.live_turns == here, f"{session.id} has {here} live turns, not {session.live_turns}"
        assert here or not session.is_final, f"{session.id} is over and was not ended"
        active += bool(book.tools.open_calls(session.id))
        ready = book.tools.ready_calls(session.id)
        assert all(call.turn in brain.live for call in ready), "a call is ready in an answer that is over"
    assert active == book.tools.active_sessions, "tools run for a session that is gone"
    assert not book.ran, "what was learned of tools was told to nobody"
