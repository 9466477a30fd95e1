from typing import Any

from gateway.domain.decision import SessionSource
from gateway.domain.ids import RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Transcript
from gateway.workflow.turns import Outcome, Session, Thread, Turn, read_turn
from tests.core.playbook import facts


def turn(**fields: Any) -> Turn:
    session = Session(
        id=SessionId("s-1"),
        tenant=TenantId("t"),
        source=SessionSource.NEW,
        confidence=0.5,
        started_s=0,
        last_seen_s=0,
    )
    thread = Thread(id=ThreadId("s-1.1"), session=session)
    known: dict[str, Any] = {
        "request": RequestId("r1"),
        "thread": thread,
        "arrived_s": 1.0,
        "tail": 0,
        "body": 0,
        "agent": 0,
        "client": 0,
        "offers_tools": True,
        "is_opening": True,
        "is_side": False,
        "asked": (),
    }
    return Turn(**known | fields)


def test_calls_are_open_until_their_results_come():
    one = turn()
    assert not one.has_open_calls
    one.calls = 1
    assert one.has_open_calls
    one.is_answered = True
    assert not one.has_open_calls


def test_what_failed():
    assert [turn(outcome=outcome).has_failed for outcome in Outcome] == [False, False, True, True]


def test_a_turn_is_followed_by_the_newest_attempt():
    one, failed, again = turn(), turn(), turn()
    assert one.successor is None
    one.next = failed
    assert one.successor is failed
    failed.retried_by = again
    assert one.successor is again


def test_when_it_was_heard_of_last():
    assert turn(arrived_s=3.0).last_s == 3.0 and turn(arrived_s=3.0, ended_s=5.0).last_s == 5.0


def test_a_conversation_without_messages_ends_in_its_agent():
    thread = turn().thread
    read = read_turn(RequestId("r"), facts(transcript=Transcript(agent=5)), thread, now=2.0)
    assert (read.tail, read.agent, read.arrived_s) == (5, 5, 2.0)
    assert read_turn(RequestId("r"), facts(transcript=Transcript(tail=8)), thread, now=0).tail == 8
    assert read.session is thread.session and read.session.call_ids == 0
