"""The information stream as a workload: sessions in order, their lineage, what they did between turns."""

import pytest

from gateway.domain import records as rec
from gateway.domain.decision import Edge
from lab.workload.problems import Problems
from lab.workload.trace.format import Tool, TurnRef
from lab.workload.trace.gateway_stream import GATEWAY_STREAM
from lab.workload.trace.importer import Choices
from tests.lab.workload.trace.made import imported
from tests.lab.workload.trace.stream import Tape


def test_sessions_come_in_order_of_arrival_though_they_end_in_another():
    tape = Tape().turn(10, "a", 100, 10, session="s", tenant="x")
    tape.turn(20, "b", 100, 10, session="u", tenant="y").over("u").over("s")
    sessions = imported(GATEWAY_STREAM, tape.member)
    assert [(s.id, s.arrival_s, s.tenant) for s in sessions] == [("s", 0.0, "x"), ("u", 10.0, "y")]


def test_a_session_comes_as_soon_as_it_may():
    tape = Tape().turn(10, "a", 100, 10).over()
    member = tape.member
    tape.turn(20, "b", 100, 10, session="u")
    member.lines.append(b"nonsense")
    problems = Problems()
    sessions = GATEWAY_STREAM.read(iter([member]), problems, Choices())
    assert next(sessions).id == "s"
    assert problems.count == 0
    assert list(sessions) == []
    assert problems.count == 1


def test_a_stream_in_several_files_is_one_stream():
    one = Tape().arrive(0, "a").member
    two = Tape().end(1, "a", 100, 10).member
    assert [s.turns for s in imported(GATEWAY_STREAM, one, two)] == [1]


def test_what_belongs_to_no_session_is_passed_over():
    tape = (
        Tape().arrive(0, "a", session=None).end(1, "a", 5, 5, session=None).end(1, "z", 5, 5, session="gone")
    )
    tape.tools("q", "x", session="gone").over("gone")
    tape.records.append(rec.ToolNum(at_s=0.0, active=1))
    tape.turn(1, "b", 5, 5).end(3, "other", 5, 5)
    assert [s.turns for s in imported(GATEWAY_STREAM, tape.member)] == [1]


def test_an_attempt_that_failed_is_no_answer():
    tape = Tape().arrive(0, "a").end(1, "a", outcome="failed").end(4, "a", 100, 10)
    tape.turn(5, "b", 10, 10)
    (session,) = imported(GATEWAY_STREAM, tape.member)
    assert session.threads[0].turns[1].pause_s == 1.0


def _one(tape):
    (session,) = imported(GATEWAY_STREAM, tape.member)
    return session


def _prefixes(session, thread=0):
    return [(turn.prefix_of, turn.prefix_tokens) for turn in session.threads[thread].turns]


@pytest.mark.parametrize(
    ("edge", "shared"),
    [
        (Edge.CONTINUES, (TurnRef(0, 0), 110)),
        (Edge.REWINDS, (TurnRef(0, 0), 110)),
        (Edge.FORKS, (TurnRef(0, 0), 110)),
        (Edge.RETRIES, (TurnRef(0, 0), 100)),
        (Edge.COMPACTS, (TurnRef(0, 0), 64)),
        (Edge.SERVES, (TurnRef(0, 0), 64)),
        (Edge.SPAWNED, (None, 0)),
        (Edge.OPENS, (None, 0)),
    ],
)
def test_an_edge_tells_what_is_shared(edge, shared):
    session = _one(Tape().turn(0, "a", 100, 10).turn(5, "b", 150, 10, edge, "a", cached=64))
    assert _prefixes(session)[1] == shared


def test_a_retry_stands_where_the_failed_attempt_would():
    tape = Tape().turn(0, "a", 100, 10).arrive(5, "b", Edge.CONTINUES, "a")
    tape.end(6, "b", outcome="failed").turn(7, "c", 130, 10, Edge.RETRIES, "b")
    assert _prefixes(_one(tape)) == [(None, 0), (TurnRef(0, 0), 110)]
    tape.turn(9, "d", 150, 10, Edge.CONTINUES, "b")
    assert _prefixes(_one(tape))[2] == (TurnRef(0, 0), 110)


def test_a_break_on_the_way_stays_a_break():
    tape = Tape().turn(0, "a", 100, 10).arrive(5, "b", Edge.COMPACTS, "a")
    tape.turn(7, "c", 130, 10, Edge.CONTINUES, "b", cached=7)
    assert _prefixes(_one(tape))[1] == (TurnRef(0, 0), 7)
    lost = Tape().turn(0, "a", 100, 10).turn(7, "c", 130, 10, Edge.CONTINUES, "unknown")
    assert _prefixes(_one(lost))[1] == (None, 0)


def test_gaps_are_tools_or_persons():
    tape = Tape().turn(0, "a", 100, 10).tools("a", "read", "run")
    tape.turn(4, "b", 150, 10, Edge.CONTINUES, "a").turn(25, "c", 200, 10, Edge.CONTINUES, "b")
    first, second, third = _one(tape).threads[0].turns
    assert first.tools == (Tool(name="read", duration_s=3.0), Tool(name="run", duration_s=3.0))
    assert (second.pause_s, second.is_pause_human) == (0.0, False)
    assert (third.pause_s, third.is_pause_human) == (20.0, True)


def test_sub_agents_are_waited_for_if_the_thread_goes_on_after_them():
    tape = Tape().turn(0, "a", 100, 10).tools("a", "Task", "Task", "read")
    tape.turn(2, "x", 50, 5, Edge.SPAWNED, "a", thread="s.2")
    tape.turn(4, "y", 70, 5, Edge.CONTINUES, "x", thread="s.2")
    tape.turn(3, "z", 60, 5, Edge.SPAWNED, "a", thread="s.3")
    tape.turn(9, "b", 150, 10, Edge.CONTINUES, "a")
    session = _one(tape)
    assert session.threads[0].turns[0].tools == (
        Tool(name="Task", starts_thread=1, duration_s=4.0),
        Tool(name="Task", starts_thread=2),
        Tool(name="read"),
    )
    assert [thread.turns[0].pause_s for thread in session.threads] == [0.0, 1.0, 2.0]
    assert session.threads[0].turns[1].pause_s == 0.0
    assert _prefixes(session, 1) == [(None, 0), (TurnRef(1, 0), 55)]


def test_a_thread_that_runs_on_is_detached():
    tape = Tape().turn(0, "a", 100, 10).turn(5, "b", 150, 10, Edge.CONTINUES, "a")
    tape.turn(1, "x", 120, 5, Edge.FORKS, "a", thread="s.2", lasts_s=60)
    session = _one(tape)
    assert session.threads[0].turns[0].tools == (Tool(name="thread", starts_thread=1, is_detached=True),)
    assert _prefixes(session, 1) == [(TurnRef(0, 0), 110)]
    assert (session.threads[0].turns[1].pause_s, session.threads[0].turns[1].is_pause_human) == (4.0, True)
