from typing import Any

from gateway.domain.decision import SessionSource
from gateway.domain.ids import RequestId, SessionId, TenantId, ThreadId
from gateway.identity.memory import Memory
from gateway.workflow import traces as module
from gateway.workflow.traces import Traces, add, drop, holders
from gateway.workflow.turns import Outcome, Session, Thread, Turn


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
    }
    return Turn(**known | fields)


def full(traces: Traces, number: int) -> Turn:
    one = turn(tail=1, body=2)
    one.text, one.minted = 4, (7, number)
    traces.add_arrival(one)
    one.outcome = Outcome.CUT
    traces.add_answer(one)
    for minted in one.minted:
        add(traces.minted, minted, one)
    return one


def is_empty(traces: Traces) -> bool:
    return not any((traces.tails, traces.bodies, traces.minted, traces.texts))


def test_every_trace_leads_back_and_every_way_is_removed():
    traces = Traces(Memory(module.MAX_TWINS))
    one, two, three = (full(traces, number) for number in (10, 20, 30))
    for index, key in ((traces.tails, 1), (traces.bodies, 2), (traces.texts, 4), (traces.minted, 7)):
        assert list(holders(index, key)) == [one, two, three]
    assert holders(traces.minted, 99) == ()
    assert list(holders(traces.minted, 20)) == [two]
    traces.remove(two)
    assert list(holders(traces.tails, 1)) == [one, three] and holders(traces.minted, 20) == ()
    traces.remove(one)
    assert list(holders(traces.tails, 1)) == [three]
    traces.remove(three)
    assert is_empty(traces)


def test_a_shared_trace_leads_to_the_newest(monkeypatch):
    monkeypatch.setattr(module, "MAX_HOLDERS", 2)
    traces = Traces(Memory(module.MAX_TWINS))
    one, two, three = (full(traces, number) for number in (10, 20, 30))
    assert list(holders(traces.tails, 1)) == [two, three]
    for old in (one, two, three):
        traces.remove(old)
    assert is_empty(traces)


def test_what_was_answered_is_not_asked_again_nor_known_by_its_text_if_it_called():
    traces = Traces(Memory(module.MAX_TWINS))
    one = turn(tail=1, body=2)
    traces.add_arrival(one)
    one.outcome, one.text, one.calls = Outcome.ANSWERED, 4, 1
    traces.add_answer(one)
    assert not traces.bodies and not traces.texts and traces.tails


def test_a_twin_left_the_same_evidence_in_another_session():
    one, other, alike = (turn(tail=1, body=2) for _ in range(3))
    traces = Traces(Memory(module.MAX_TWINS))
    for each, text, minted in ((one, 4, ()), (other, 4, (7,)), (alike, 5, (7,))):
        traces.add_arrival(each)
        each.text, each.minted = text, minted
        for known in minted:
            add(traces.minted, known, each)
    assert traces.has_twin(one), "by what it answered: `other` answered that, too"
    assert traces.has_twin(other) and traces.has_twin(alike), "by an id"
    other.text = 6
    assert not traces.has_twin(one)
    alike.minted, one.text = (), 6
    drop(traces.minted, 7, alike)
    assert not traces.has_twin(other), "what else is asked alike does not count beside an id"


def test_when_a_turn_was_heard_of_last():
    assert turn(arrived_s=3.0).last_s == 3.0 and turn(arrived_s=3.0, ended_s=5.0).last_s == 5.0
