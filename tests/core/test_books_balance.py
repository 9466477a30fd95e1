"""Whatever happens, in whatever order, the books balance: random lives against an oracle beside the brain.

The oracle keeps books of its own, in the plainest way, from the events that were sent and the commands
that came back. `check_books` says that the brain agrees with itself; the oracle, that it agrees with
the world.
"""

from collections import Counter

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core import events as ev
from gateway.core.commands import Dispatch, Refuse
from gateway.domain import records as rec
from gateway.domain.request import Work
from lab.simulator.invariants import check_books
from tests.core.playbook import (
    Playbook,
    answer,
    arrived,
    call_closed,
    call_seen,
    cut,
    down,
    failed,
    finished,
    first_token,
    left,
    session_finished,
    started,
    state_minted,
    stated,
    up,
)
from tests.examples import examples

MAX_RUNNING = 1
MAX_WAITING = 4
MAX_BYTES = 90
MAX_SESSIONS = 4
REPLICAS = {"a": "one", "b": "one", "c": "one", "d": "two", "e": "two"}
CALLS = ["call_0", "call_1", "call_2", "call_3"]
STATES = ["resp_0", "resp_1", "resp_2"]
NEEDS_CAPACITY = (Work.GENERATE, Work.POOL)


class Known(msgspec.Struct):
    """What the oracle knows of a request."""

    event: ev.RequestArrived
    home: str
    phase: str = "undecided"  # waiting, submitted, answering, over
    replica: str = ""
    tried: list[str] = []
    attempts: int = 0
    was_sent: bool = False
    entered: int = 0
    open_submits: int = 0

    @property
    def choice(self):
        is_two = self.event.facts.model == "m2"
        return (self.home or is_two, frozenset(self.tried))


class Books(RuleBasedStateMachine):
    """Every rule sends one event; every command that comes back is checked by the oracle."""

    @initialize(has_keys=st.booleans())
    def open(self, has_keys):
        self.play = Playbook(
            replicas="",
            pools=({"name": "one", "models": ["m1"]}, {"name": "two"}),
            tenants_have_keys=has_keys,
            max_running_per_replica=MAX_RUNNING,
            max_waiting=MAX_WAITING,
            admission={"max_waiting_bytes": MAX_BYTES},
            sessions={"max_sessions": MAX_SESSIONS, "max_turns": 3, "max_call_ids": 2, "idle_s": 40},
            tools={"max_open_calls": 2},
            state={"max_state_ids": 6},
            core={"max_wait_s": 10},
        )
        self.brain = self.play.brain
        self.known: dict[str, Known] = {}
        self.up: set[str] = set()
        self.drained: set[str] = set()
        self.to_be_drained: set[str] = set()
        self.homes: dict[tuple[str, str], str] = {}
        self.tenants: dict[str, str] = {}
        self.entered = 0
        for replica in "ad":
            self.replica_comes_up(replica)

    # --- the oracle ------------------------------------------------------------------------------

    def send(self, event):
        commands = self.brain.handle(event, now=self.play.now)
        for command in commands:
            match command:
                case Dispatch():
                    self.saw_dispatch(command)
                case Refuse():
                    known = self.known[command.request]
                    assert known.phase in ("undecided", "waiting", "failed"), known
                    known.phase = "over"
                case record:
                    self.saw_record(record)
        check_books(self.brain)

    def load_of(self, replica):
        there = [other for other in self.known.values() if other.replica == replica]
        return sum(other.event.facts.work in NEEDS_CAPACITY for other in there)

    def saw_dispatch(self, command):
        known, replica = self.known[command.request], command.placement.replica
        assert known.phase in ("undecided", "waiting", "failed"), known
        assert not known.was_sent or known.event.facts.is_replayable, "ran twice"
        assert replica in self.up, "was sent to a replica that is down"
        assert replica not in known.tried
        assert known.home in ("", replica), "left home"
        running = self.load_of(replica)
        if known.event.facts.work in NEEDS_CAPACITY:
            assert running < MAX_RUNNING, "a full replica was given more"
        if known.phase == "waiting":
            for other in self.known.values():
                is_equal = (other.choice, other.event.tenant) == (known.choice, known.event.tenant)
                if other.phase == "waiting" and is_equal:
                    assert other.entered >= known.entered, "overtook its equal"
        known.phase, known.replica = "submitted", replica
        known.tried = [*known.tried, replica]
        known.attempts += 1
        assert command.attempt == known.attempts <= 3

    def saw_record(self, record):
        match record:
            case rec.TurnWaited():
                self.entered += 1
                self.known[record.turn].phase = "waiting"
                self.known[record.turn].entered = self.entered
            case rec.GpuSubmit():
                self.known[record.turn].open_submits += 1
                assert self.known[record.turn].open_submits == 1, "submitted while it ran"
            case rec.GpuEnd():
                self.known[record.turn].open_submits -= 1
                assert self.known[record.turn].open_submits == 0, "ended twice"
            case rec.TurnArrived() if record.session is not None:
                assert self.tenants.setdefault(record.session, record.tenant) == record.tenant
            case _:
                pass

    def serving(self, known):
        if known.home:
            return {known.home} & self.up
        pool = "two" if known.event.facts.model == "m2" else "one"
        return {name for name in self.up - self.drained if REPLICAS[name] == pool}

    def over(self, request):
        known = self.known[request]
        known.phase, known.replica = "over", ""

    def pick(self, data, *phases):
        choices = sorted(request for request, known in self.known.items() if known.phase in phases)
        return data.draw(st.sampled_from(choices)) if choices else None

    # --- what may happen -------------------------------------------------------------------------

    @rule(
        tenant=st.sampled_from(["t1", "t2"]),
        work=st.sampled_from([Work.GENERATE] * 8 + [Work.POOL, Work.STATE, Work.LIGHT]),
        model=st.sampled_from(["m1", "m1", "m1", "m2", None]),
        explicit=st.none() | st.builds(stated, st.sampled_from("xy"), final=st.booleans()),
        echoed=st.lists(st.sampled_from(CALLS), max_size=2, unique=True),
        state=st.none() | st.sampled_from(STATES),
        body_bytes=st.sampled_from([1, 10, 40]),
        is_readable=st.sampled_from([True, True, True, False]),
        is_replayable=st.booleans(),
    )
    def arrives(self, tenant, work, model, explicit, echoed, state, body_bytes, is_readable, is_replayable):
        request = f"r{len(self.known)}"
        event = arrived(
            request,
            tenant,
            work=work,
            model=model,
            explicit=explicit,
            echoed_ids=tuple(echoed),
            tool_result_ids=tuple(echoed),
            state_ids=() if state is None else (state,),
            body_bytes=body_bytes,
            is_readable=is_readable,
            is_replayable=is_replayable,
        )
        self.known[request] = Known(event, self.homes.get((tenant, state), ""))
        self.send(event)

    @rule(data=st.data(), call=st.none() | st.sampled_from(CALLS), state=st.none() | st.sampled_from(STATES))
    def answers(self, data, call, state):
        request = self.pick(data, "submitted", "answering")
        if request is None:
            return
        known = self.known[request]
        if known.phase == "submitted":
            known.phase = "answering"
            self.send(started(request))
        self.send(first_token(request))
        if call is not None:
            self.send(call_seen(request, call))
            if data.draw(st.booleans()):
                self.send(call_closed(request, call))
        if state is not None:
            self.homes[known.event.tenant, state] = known.replica
            self.send(state_minted(request, state))

    @rule(data=st.data(), how=st.sampled_from([finished, finished, cut]), call=st.sampled_from(CALLS))
    def ends(self, data, how, call):
        request = self.pick(data, "answering")
        if request is not None:
            self.over(request)
            self.send(how(request, call))

    @precondition(lambda self: len(self.brain.live) > 2)
    @rule(data=st.data(), seen=st.none() | st.builds(answer, st.sampled_from(CALLS)))
    def client_leaves(self, data, seen):
        request = self.pick(data, "waiting", "submitted", "answering")
        if request is not None:
            self.over(request)
            self.send(left(request, seen))

    @rule(data=st.data(), was_sent=st.booleans(), timed_out=st.sampled_from([False, False, True]))
    def attempt_fails(self, data, was_sent, timed_out):
        request = self.pick(data, "submitted")
        if request is not None:
            known = self.known[request]
            known.phase, known.replica = "failed", ""
            known.was_sent |= was_sent
            if not self.serving(known) - set(known.tried):
                known.tried = []  # then wherever somebody is there again
            self.send(failed(request, was_sent=was_sent, timed_out=timed_out))

    @rule(replica=st.sampled_from(sorted(REPLICAS)))
    def replica_comes_up(self, replica):
        self.up.add(replica)
        if self.brain.fleet.get(replica) is None:  # new, or forgotten once
            self.drained.discard(replica)
            self.drained |= self.to_be_drained & {replica}
            self.to_be_drained.discard(replica)
        pool = REPLICAS[replica]
        self.send(up(replica, pool=pool, models=("m2",) if pool == "two" else ()))

    @precondition(lambda self: len(self.up) > 1)
    @rule(data=st.data())
    def replica_goes_down(self, data):
        replica = data.draw(st.sampled_from(sorted(self.up)))
        self.up.discard(replica)
        self.send(down(replica))

    @rule(data=st.data(), is_draining=st.booleans())
    def replica_is_drained(self, data, is_draining):
        replica = data.draw(st.sampled_from(sorted(REPLICAS)))
        books = self.drained if self.brain.fleet.get(replica) is not None else self.to_be_drained
        (books.add if is_draining else books.discard)(replica)
        self.send(ev.ReplicaDrained(replica, is_draining))

    @precondition(lambda self: len(self.up) > 1)
    @rule(data=st.data())
    def replica_leaves(self, data):
        replica = data.draw(st.sampled_from(sorted(self.up)))
        self.up.discard(replica)
        self.to_be_drained.discard(replica)
        self.send(ev.ReplicaLeft(replica, "was told to"))

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0, 45.0]))
    def time_passes(self, seconds):
        self.play.now += seconds
        self.send(ev.TimerFired())
        due = self.brain.next_deadline_s()
        assert due is None or due > self.play.now, "the timer would fire forever"

    @rule(data=st.data())
    def session_is_ended(self, data):
        sessions = [session.id for session in self.brain.sessions.sessions.newest_first()]
        self.send(session_finished(data.draw(st.sampled_from([*sessions, "s-unknown"]))))

    @precondition(lambda self: len(self.known) > 20)
    @rule()
    def drains(self):
        self.send(ev.DrainStarted())

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def every_request_is_in_exactly_one_place(self):
        live = {request for request, known in self.known.items() if known.phase != "over"}
        waiting = {request for request, known in self.known.items() if known.phase == "waiting"}
        assert set(self.brain.live) == live
        assert {waiting.request for waiting in self.brain.waiting_room} == waiting
        assert not any(known.phase in ("undecided", "failed") for known in self.known.values())

    @invariant()
    def replicas_run_what_was_sent_to_them(self):
        running = Counter(known.replica for known in self.known.values() if known.replica)
        assert {state.facts.id: state.running + state.light for state in self.brain.fleet} == {
            state.facts.id: running[state.facts.id] for state in self.brain.fleet
        }

    @invariant()
    def everything_is_bounded(self):
        sessions = self.brain.sessions
        live_sessions = sum(bool(s.live_turns) for s in sessions.sessions.newest_first())
        assert len(sessions.sessions) <= max(MAX_SESSIONS, live_sessions + 1) or live_sessions
        assert len(self.brain.waiting_room) <= MAX_WAITING
        assert self.brain.waiting_room.body_bytes <= MAX_BYTES
        for session in sessions.sessions.newest_first():
            assert len(session.log) <= max(3, session.live_turns)
            assert all(len(turn.minted) <= 2 for turn in session.log)
        assert len(sessions.residence) <= 6

    def teardown(self):
        if not hasattr(self, "brain"):
            return
        for request in list(self.brain.live):
            if self.known[request].phase != "over":
                self.over(request)
                self.send(left(request))
        for session in list(self.brain.sessions.sessions.newest_first()):
            self.send(session_finished(session.id))
        sessions = self.brain.sessions.sessions
        assert not self.brain.live and len(self.brain.waiting_room) == 0
        assert self.brain.waiting_room.body_bytes == 0
        assert not self.brain.waiting_room._lanes and not self.brain.waiting_room._by_deadline
        assert all(state.running + state.light == 0 for state in self.brain.fleet)
        assert (
            len(sessions) == 0 and not sessions._traces and not sessions._by_explicit and not sessions._live
        )
        assert self.brain.sessions.tools.active_sessions == 0 and not self.brain.sessions.tools._open
        assert self.brain.next_deadline_s() is None
        assert all(known.open_submits == 0 for known in self.known.values())


Books.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=50, deadline=None)
TestBooksBalance = Books.TestCase
