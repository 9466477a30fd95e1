from typing import Any

import pytest

from gateway.domain.decision import SessionSource
from gateway.domain.ids import RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Utterance, Words
from gateway.workflow import traces as module
from gateway.workflow.traces import WORN, Traces, Unread, holders
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
        "asked": (),
    }
    return Turn(**known | fields)


class Asked(Words):
    def __init__(self, *asked: int, size: int = 9) -> None:
        self.read, self._asked, self._size = 0, asked, size

    @property
    def size(self) -> int:
        return self._size

    @property
    def asked(self) -> tuple[int, ...]:
        self.read += 1
        return self._asked


class Spoken(Utterance):
    size = 9
    said = (5, 3)

    def __init__(self, *handed: int) -> None:
        super().__init__(text=4)
        self._handed = handed

    @property
    def handed(self) -> tuple[tuple[int, ...], ...]:
        return (self._handed,)

    @property
    def handed_sizes(self) -> tuple[int, ...]:
        return (9,)


def full(traces: Traces, number: int) -> Turn:
    one = turn(tail=1, body=2)
    one.text, one.minted = 4, (7, number)
    traces.add_arrival(one, Asked(3, number))
    one.outcome = Outcome.CUT
    traces.add_answer(one, Spoken(6, number))
    for minted in one.minted:
        traces.add_minted(one, minted)
    return one


def is_empty(traces: Traces) -> bool:
    indexes = (traces.tails, traces.bodies, traces.minted, traces.texts, traces.marks)
    return (
        not any((*indexes, traces.prompts, traces.asked)) and not traces._waiting and not traces._unread.size
    )


def test_every_trace_leads_back_and_every_way_is_removed():
    traces = Traces()
    one, two, three = (full(traces, number) for number in (10, 20, 30))
    assert not traces.marks and not traces.prompts, "nobody searches"
    traces.read_words()
    for index, key in ((traces.tails, 1), (traces.bodies, 2), (traces.texts, 4), (traces.minted, 7)):
        assert list(holders(index, key)) == [one, two, three]
    assert list(holders(traces.marks, 3)) == list(holders(traces.prompts, 3)) == [one, two, three]
    assert holders(traces.marks, 99) == ()
    assert list(holders(traces.marks, 20)) == [two]
    traces.remove(two)
    assert list(holders(traces.tails, 1)) == [one, three] and holders(traces.marks, 20) == ()
    traces.remove(one)
    assert list(holders(traces.tails, 1)) == [three]
    traces.remove(three)
    assert is_empty(traces)


def test_a_shared_trace_leads_to_the_newest(monkeypatch):
    monkeypatch.setattr(module, "MAX_HOLDERS", 2)
    traces = Traces()
    one, two, three = (full(traces, number) for number in (10, 20, 30))
    assert list(holders(traces.tails, 1)) == [two, three]
    for old in (one, two, three):
        traces.remove(old)
    assert is_empty(traces)


def test_quotes_may_be_forgotten_alone():
    traces = Traces()
    one = full(traces, 10)
    traces.read_words()
    assert traces.marks and traces.prompts
    traces.remove_marks(one)
    assert not traces.marks and not traces.prompts and list(holders(traces.tails, 1)) == [one]
    assert one.asked == one.said == () and one.handed == ()


def test_titles_are_few_and_short_lived(monkeypatch):
    monkeypatch.setattr(module, "MAX_TITLES", 2)
    traces = Traces()
    turns = [turn(arrived_s=float(at)) for at in range(3)]
    for one in turns:
        traces.add_title(one, frozenset({1}))
    assert [title[0] for title in traces.titles] == turns[1:]
    traces.drop_titles(before_s=2)
    assert [title[0] for title in traces.titles] == turns[2:]
    traces.remove(turns[2])
    assert traces.titles == []


def test_titles_of_all_tenants_are_few_and_the_oldest_go(monkeypatch):
    monkeypatch.setattr(module, "MAX_PROBES", 3)
    unread = Unread()
    one, other = Traces(unread), Traces(unread)
    one.add_title(turn(), frozenset({1, 2}))
    other.add_title(turn(), frozenset({3, 4}))
    assert not one.titles and len(other.titles) == 1 and unread.probes == 2
    other.drop_titles(before_s=10**9)
    assert unread.probes == 0 and not unread.titles


def test_what_was_answered_is_not_asked_again_nor_known_by_its_text_if_it_called():
    traces = Traces()
    one = turn(tail=1, body=2)
    traces.add_arrival(one, Words())
    one.outcome, one.text, one.calls = Outcome.ANSWERED, 4, 1
    traces.add_answer(one, Utterance())
    assert not traces.bodies and not traces.texts and traces.tails


@pytest.mark.parametrize(("limit", "value"), [("MAX_WAITING", 2), ("MAX_UNREAD", 20)])
def test_words_that_wait_are_bounded_and_the_oldest_are_read(monkeypatch, limit, value):
    monkeypatch.setattr(module, limit, value)
    monkeypatch.setattr(module, "AT_ONCE", 1)
    traces = Traces()
    words = [Asked(at) for at in range(4)]
    for one in words:
        traces.add_arrival(turn(), one)
    assert [one.read for one in words] == [1, 1, 0, 0] and list(traces.prompts) == [0, 1]


def test_of_too_many_some_are_read_together(monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 4)
    monkeypatch.setattr(module, "AT_ONCE", 3)
    traces = Traces()
    words = [Asked(at) for at in range(7)]
    for one in words[:4]:
        traces.add_arrival(turn(), one)
    assert not traces.prompts
    for one in words[4:]:
        traces.add_arrival(turn(), one)
        assert [one.read for one in words] == [1, 1, 1, 0, 0, 0, 0] and list(traces.prompts) == [0, 1, 2]


def test_tenants_share_the_memory_for_words(monkeypatch):
    monkeypatch.setattr(module, "MAX_UNREAD", 20)
    unread = Unread()
    one, other = Traces(unread), Traces(unread)
    one.add_arrival(turn(), Asked(1, size=15))
    other.add_arrival(turn(), Asked(2, size=15))
    assert not one.prompts and list(other.prompts) == [2] and unread.size == 15


def test_long_words_are_read_at_once():
    traces = Traces()
    traces.add_arrival(turn(), Asked(1, size=10**6))
    assert list(traces.prompts) == [1]


def test_words_are_read_once_and_forgotten_with_their_turn():
    traces, words, others = Traces(), Asked(1), Asked(2)
    one, other = turn(), turn()
    traces.add_arrival(one, words)
    traces.add_arrival(other, others)
    traces.remove_marks(other)
    traces.read_words()
    traces.read_words()
    assert (words.read, others.read) == (1, 0) and list(traces.prompts) == [1]


def test_words_that_thousands_say_are_dropped_unread(monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    traces = Traces()
    for _ in range(WORN):
        assert not traces.is_worn(2)
        traces.add_fruitless(2)
    words = [Asked(at) for at in range(3)]
    for one in words:
        traces.add_arrival(turn(body=2), one)
    assert traces.is_worn(2) and [one.read for one in words] == [0, 0, 0] and not traces.prompts


def test_what_agents_are_asked_stands_apart_from_what_others_are_asked():
    traces = Traces()
    one, other = turn(), turn(offers_tools=False)
    for at, asking in enumerate((one, other)):
        traces.add_arrival(asking, Asked(at))
    traces.read_words()
    assert list(traces.prompts) == [0] and list(traces.asked) == [1]
    traces.remove(one)
    traces.remove(other)
    assert is_empty(traces)


def test_a_twin_left_the_same_evidence_in_another_session():
    one, other, alike = (turn(tail=1, body=2) for _ in range(3))
    traces = Traces(Unread())
    for each, text, minted in ((one, 4, ()), (other, 4, (7,)), (alike, 5, (7,))):
        traces.add_arrival(each, Asked(3))
        each.text, each.minted = text, minted
        for known in minted:
            traces.add_minted(each, known)
    assert traces.has_twin(one), "by what it answered: `other` answered that, too"
    assert traces.has_twin(other) and traces.has_twin(alike), "by an id"
    other.text = 6
    assert not traces.has_twin(one)
    alike.minted, one.text = (), 6
    traces.remove_minted(alike, (7,))
    assert not traces.has_twin(other), "what else is asked alike does not count beside an id"


def test_when_a_turn_was_heard_of_last():
    assert turn(arrived_s=3.0).last_s == 3.0 and turn(arrived_s=3.0, ended_s=5.0).last_s == 5.0
