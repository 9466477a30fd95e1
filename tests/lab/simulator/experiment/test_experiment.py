"""Experiments: knees, sessions that come twice, results, and their drawing."""

from itertools import pairwise

import pytest

from lab.simulator.baselines.spec import parse_policies
from lab.simulator.experiment.again import twice
from lab.simulator.experiment.draw import Arrivals, draw, fitting
from lab.simulator.experiment.knee import BEHIND, SATURATED, Slow, find_knee
from lab.simulator.experiment.results import planned, put_together
from lab.simulator.measures.figures import METRICS, RunFigures
from lab.simulator.measures.run_measures import RunMeasures
from lab.workload.trace.format import Session, Thread, Turn
from tests.lab.simulator.measures import outcomes
from tests.lab.workload.trace.made import session as chat

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


WORKLOAD = [chat(f"s{n}", 10 * (n + 1), arrival_s=float(n * n)) for n in range(10)]


def _poisson(per_h, count, seed, workload=WORKLOAD):
    return draw(workload, arrivals=Arrivals.POISSON, per_h=per_h, count=count, seed=seed)


def test_a_load_only_stretches_the_same_run():
    slow, fast = _poisson(60, 8, 1), _poisson(120, 8, 1)
    assert [session.id for session in slow] == [session.id for session in fast]
    assert [session.arrival_s for session in slow] == pytest.approx([2 * s.arrival_s for s in fast])
    assert slow != _poisson(60, 8, 2)


def test_the_rate_is_right_in_every_run_and_gaps_are_those_of_a_poisson_process():
    runs = [[session.arrival_s for session in _poisson(3600, 100, seed)] for seed in range(100)]
    assert all(min(times) > 0 and max(times) < 100.0 for times in runs)
    gaps = [later - sooner for times in runs for sooner, later in pairwise(times)]
    assert sum(gaps) / len(gaps) == pytest.approx(1.0, rel=0.05)
    # Exponential: a share of 1/e is longer than the mean.
    assert sum(gap > 1.0 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)


def test_every_session_is_played_once_before_any_is_again_and_ids_stay_unique():
    drawn = _poisson(60, 25, 3)
    assert {session.id for session in drawn[:10]} == {session.id for session in WORKLOAD}
    assert len({session.id for session in drawn}) == 25
    assert sum(session.id.endswith("~3") for session in drawn) == 5


def test_the_files_own_arrivals_are_kept_or_stretched():
    own = draw(WORKLOAD, arrivals=Arrivals.FILE, per_h=None, count=4, seed=1)
    first = int(own[0].id[1:])
    assert [session.arrival_s for session in own] == [(first + n) ** 2 - first**2 for n in range(4)]
    faster = draw(WORKLOAD, arrivals=Arrivals.FILE, per_h=3600.0, count=4, seed=1)
    assert faster[-1].arrival_s == pytest.approx(3.0)  # 3 gaps of a second on average
    assert len(draw(WORKLOAD, arrivals=Arrivals.FILE, per_h=None, count=99, seed=1)) == 10


def test_what_fits_is_by_the_longest_context():
    assert [session.id for session in fitting(WORKLOAD, kv_tokens=40, max_model_len=1000)] == [
        "s0",
        "s1",
        "s2",
    ]
    assert len(fitting(WORKLOAD, kv_tokens=1000, max_model_len=25)) == 1


@pytest.mark.parametrize("true_knee", [3.0, 60.0, 64.0, 900.0])
def test_a_knee_is_found_from_any_guess(true_knee):
    knee, tried = find_knee(lambda load: 2.0 * (load / true_knee) ** 4, 64.0, at_most=2.0)
    assert knee == pytest.approx(true_knee, rel=0.1)
    assert len(tried) <= 11


def test_a_knee_that_is_nowhere_ends_the_search():
    knee, tried = find_knee(lambda load: 1.0, 10.0)
    assert knee >= max(tried)
    assert len(tried) <= 10


def test_the_knee_is_where_memory_costs_or_else_where_processors_are_full():
    assert Slow(stock=1.2, unlimited=1.1).measure < 1
    assert Slow(stock=BEHIND * 1.1, unlimited=1.1).measure == pytest.approx(1.0)
    assert Slow(stock=SATURATED, unlimited=SATURATED).measure == pytest.approx(1.0)


def run(mean_s: float) -> RunFigures:
    curve = [(mean_s * share, share) for share in (0.5, 1.0)]
    return RunFigures(
        sessions=10, turns=30, metrics={metric.name: mean_s for metric in METRICS},
        tenants={"t": {"sessions": 10.0, "slo": 0.5}}, completion_cdf=curve, slowdown_cdf=curve,
        ttft_cdf=curve, over_time={}, shown=[],
    )  # fmt: skip


def test_everything_is_run_once_and_put_where_it_was_asked_for():
    specs = parse_policies("affinity,session-cap:n=8/12")
    loads = [40.0, 70.0]
    trials = planned(specs, loads, seeds=3)
    assert len(trials) == len(set(trials)) == 3 * 2 * 3
    assert trials[0].per_h == 70.0  # what takes the longest first

    def mean_s(trial) -> float:
        is_12 = trial.variant.label.endswith("12")
        base = (
            100.0 if trial.variant.label == "affinity" else (50.0 if is_12 == (trial.per_h == 70.0) else 60.0)
        )
        return base + trial.seed

    cells = put_together(specs, loads, trials, [run(mean_s(trial)) for trial in trials])
    assert [(cell.policy, cell.variant, cell.per_h, cell.is_best) for cell in cells] == [
        ("affinity", "affinity", 40.0, True),
        ("affinity", "affinity", 70.0, True),
        ("session-cap:n=8/12", "session-cap:n=8", 40.0, True),
        ("session-cap:n=8/12", "session-cap:n=12", 40.0, False),
        ("session-cap:n=8/12", "session-cap:n=8", 70.0, False),
        ("session-cap:n=8/12", "session-cap:n=12", 70.0, True),
    ]
    spread = cells[0].metrics["completion_mean_s"]
    assert spread is not None
    assert (spread.min, spread.median, spread.max) == (101.0, 102.0, 103.0)
    assert [figures.metrics["slo"] for figures in cells[0].runs] == [101.0, 102.0, 103.0]


def test_the_best_is_the_highest_where_higher_is_better():
    specs = parse_policies("session-cap:n=8/12")
    trials = planned(specs, [40.0], seeds=1)
    figures = [run(1.0), run(2.0)]
    cells = put_together(specs, [40.0], trials, figures, best_by="goodput_2")
    assert [cell.is_best for cell in cells] == [False, True]
