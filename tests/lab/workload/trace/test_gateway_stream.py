"""The information stream, read: which sessions there are, when they came, in which order they come out."""

from gateway.domain import records as rec
from lab.workload.problems import Problems
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
