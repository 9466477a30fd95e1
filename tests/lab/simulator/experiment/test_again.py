"""The same sessions twice: the first time is played, and not measured."""

from lab.simulator.experiment.again import twice
from lab.simulator.measures.run_measures import RunMeasures
from lab.workload.trace.format import Session, Thread, Turn
from tests.lab.simulator.measures import outcomes

SESSIONS = [
    Session(id=name, arrival_s=at_s, threads=(Thread(turns=(Turn(input_tokens=10, output_tokens=2),)),))
    for name, at_s in (("a", 0.0), ("b", 500.0))
]


def test_the_second_time_is_the_first_one_later_and_in_order():
    both = twice(SESSIONS)
    assert [each.id for each in both[2:]] == ["a", "b"] and len({each.id for each in both}) == 4
    assert [each.threads for each in both[:2]] == [each.threads for each in both[2:]]
    arrivals = [each.arrival_s for each in both]
    assert arrivals == sorted(arrivals)
    assert both[3].arrival_s - both[2].arrival_s == 500.0 and both[2].arrival_s >= 500.0 + 3600


def test_the_first_time_is_not_measured():
    measures = RunMeasures(sessions=2, measured=frozenset(each.id for each in SESSIONS))
    for at_s, each in enumerate(twice(SESSIONS), start=1):
        measures.turn_done(outcomes.turn(each.id, prompt_tokens=at_s))
        began_s, end_s = each.arrival_s, each.arrival_s + at_s
        measures.session_done(
            outcomes.session(each.id, arrival_s=began_s, final_first_token_s=end_s, end_s=end_s)
        )
    assert measures.ended == 2 and measures.turns.prompt_tokens == 3 + 4
    assert measures.completion_s.mean == 3.5
    assert measures.window_s == 500.0 + 4
