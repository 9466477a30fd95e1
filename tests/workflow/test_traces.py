from gateway.workflow import traces as module
from gateway.workflow.traces import Traces, holders
from gateway.workflow.turns import Outcome, Turn
from tests.workflow.test_turns import turn


def full(traces: Traces, number: int) -> Turn:
    one = turn(tail=1, body=2, asked=(3, number))
    one.text, one.said, one.handed, one.minted = 4, (5, 3), ((6, number),), (7, number)
    traces.add_arrival(one)
    one.outcome = Outcome.CUT
    traces.add_answer(one)
    for minted in one.minted:
        traces.add_minted(one, minted)
    return one


def is_empty(traces: Traces) -> bool:
    return not (traces.tails or traces.bodies or traces.minted or traces.texts or traces.marks)


def test_every_trace_leads_back_and_every_way_is_removed():
    traces = Traces()
    one, two, three = (full(traces, number) for number in (10, 20, 30))
    for index, key in ((traces.tails, 1), (traces.bodies, 2), (traces.texts, 4), (traces.minted, 7)):
        assert list(holders(index, key)) == [one, two, three]
    assert list(holders(traces.marks, 3)) == [one, two, three] and holders(traces.marks, 99) == ()
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
    traces.remove_marks(one)
    assert not traces.marks and list(holders(traces.tails, 1)) == [one]
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


def test_what_was_answered_is_not_asked_again_nor_known_by_its_text_if_it_called():
    traces = Traces()
    one = turn(tail=1, body=2)
    traces.add_arrival(one)
    one.outcome, one.text, one.calls = Outcome.ANSWERED, 4, 1
    traces.add_answer(one)
    assert not traces.bodies and not traces.texts and traces.tails
