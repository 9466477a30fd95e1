"""What is measured of a run: series, histograms, goodput, fairness, promises to tenants."""

import math
import random

import pytest

from gateway.domain.ids import ReplicaId
from lab.simulator.measures.fairness import Jain
from lab.simulator.measures.figures import METRICS, run_figures
from lab.simulator.measures.goodput import Goodput
from lab.simulator.measures.histogram import ERROR, Histogram
from lab.simulator.measures.run_measures import RunMeasures
from lab.simulator.measures.series import CELLS, Gauge, Series
from lab.simulator.measures.shared import reusable_tokens
from lab.simulator.measures.tenants import Tenants
from lab.simulator.measures.waterfall import Waterfall
from lab.simulator.results import ReplicaSample, Totals
from lab.workload.trace.format import Session, Thread, Turn, TurnRef
from tests.lab.simulator.measures.outcomes import session, turn


def _nearest_rank(values: list[float], share: float) -> float:
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_are_within_the_error_of_the_number_of_that_rank(seed):
    dice = random.Random(seed)
    values = [dice.lognormvariate(3, 2) for _ in range(2000)] + [0.0] * dice.randrange(100)
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for share in (0.001, 0.1, 0.5, 0.9, 0.99, 1.0):
        exact = _nearest_rank(values, share)
        assert histogram.quantile(share) == pytest.approx(exact, rel=ERROR)
    assert histogram.mean == pytest.approx(sum(values) / len(values))
    assert (histogram.count, histogram.least, histogram.most) == (len(values), min(values), max(values))


def test_memory_depends_on_the_span_and_not_on_the_count():
    histogram = Histogram()
    for number in range(100_000):
        histogram.add(1e-3 * 1.0001**number)
    # 100,000 × ln 1.0001 = 10.0 decades of e; a bucket is ln(1.005 / 0.995) = 0.01 of them.
    assert len(histogram._buckets) <= 1002


def _sample(kv_used, prompt=0, cached=0, running=0, waiting=0):
    return ReplicaSample(
        replica=ReplicaId("r"),
        running=running,
        waiting=waiting,
        kv_used=kv_used,
        prompt_tokens=prompt,
        cached_tokens=cached,
        busy_s=0.0,
    )


def test_a_run_by_hand():
    """Two sessions. The first arrives at 0, waits 1 s in the gateway and 0.5 s in the engine, and is over at
    10 s; the second arrives at 4 s, has two turns, and is over at 24 s. Alone they take 10 s and 8 s."""
    measures = RunMeasures(sessions=2)
    measures.turn_done(
        turn(
            "a", waited_s=1.0, began_s=1.5, first_token_s=3.0, end_s=10.0, prompt_tokens=100, output_tokens=20
        )
    )
    measures.session_done(session("a", final_first_token_s=3.0, end_s=10.0, isolated_s=10.0))
    measures.turn_done(turn("b", arrival_s=4.0, began_s=4.0, first_token_s=5.0, end_s=8.0, prompt_tokens=200))
    measures.turn_done(
        turn(
            "b",
            turn=1,
            arrival_s=9.0,
            waited_s=0.0,
            began_s=12.0,
            first_token_s=18.0,
            end_s=24.0,
            prompt_tokens=300,
            cached_tokens=150,
            preemptions=1,
        )
    )
    measures.session_done(
        session("b", arrival_s=4.0, final_first_token_s=18.0, end_s=24.0, isolated_s=8.0, turns=2)
    )
    measures.sample(5.0, [_sample(0.5, 100, 0), _sample(0.7, 200, 150)])
    measures.sample(15.0, [_sample(0.9), _sample(0.9)])
    totals = Totals(
        sessions=2,
        turns=3,
        prompt_tokens=600,
        cached_tokens=150,
        output_tokens=40,
        preemptions=1,
        # (100 + 200 + 150) new prompt tokens, 37 of the answers, and 60 again after the preemption.
        computed_tokens=547,
        busy_s=24.0,
    )
    figures = run_figures(measures, totals, reusable_tokens=200, replicas=2)
    found = figures.metrics
    assert list(found) == [metric.name for metric in METRICS]
    assert found["completion_mean_s"] == 15.0  # 10 and 20
    assert found["completion_p50_s"] == pytest.approx(10.0, rel=0.005)
    assert found["completion_p99_s"] == pytest.approx(20.0, rel=0.005)
    assert found["slowdown_mean"] == (1.0 + 2.5) / 2
    assert found["ttft_mean_s"] == pytest.approx((3 + 1 + 9) / 3)
    assert found["final_ttft_mean_s"] == (3.0 + 14.0) / 2
    assert (found["goodput_1.5"], found["goodput_2"], found["goodput_4"]) == (0.5, 0.5, 1.0)
    assert found["goodput_4_per_h"] == 2 * 3600 / 24  # over the window, from 0 to 24 s
    assert found["hit_rate"] == 150 / 600
    # 200 could have been hits, 150 were; and 60 were computed twice.
    assert found["recomputed_tokens"] == 50 + 60
    assert found["waited_mean_s"] == pytest.approx(1 / 3)
    assert found["queued_mean_s"] == pytest.approx((0.5 + 0 + 3) / 3)
    assert found["kv_used_mean"] == pytest.approx((0.6 + 0.9) / 2)
    assert found["kv_used_max"] == 0.9
    assert found["busy"] == 0.5  # 24 s of steps on two engines in 24 s
    assert figures.over_time["hit rate"] == [(5.5, 0.5)]
    assert sum(rate for _, rate in figures.over_time["waiting sessions"]) == pytest.approx(1.0)
    assert sum(rate for _, rate in figures.over_time["sessions inside"]) == pytest.approx(9 + 20)
    assert figures.tenants["t"] == {
        "sessions": 2,
        "slo": 0.5,
        "completion_mean_s": 15.0,
        "progress": (1 + 0.4) / 2,
    }


def test_the_steady_rate_leaves_filling_and_draining_out():
    measures = RunMeasures(sessions=20)
    for number in range(20):  # one a minute in the middle; the first and the last two are slow
        end_s = 1000.0 + 60 * number + (5000 if number >= 18 else 0)
        measures.session_done(session(f"s{number}", end_s=end_s))
    # From the 2nd end (10 %) to the 18th (90 %): 16 sessions in 16 minutes.
    assert measures.steady_sessions_per_h == pytest.approx(60.0)


def test_memory_does_not_grow_with_sessions_that_are_over():
    measures = RunMeasures(sessions=10_000, waterfall=Waterfall(frozenset({"s1", "s2", "s3"})))
    for number in range(10_000):
        at_s = 10.0 * number
        measures.turn_done(
            turn(f"s{number}", arrival_s=at_s, began_s=at_s, first_token_s=at_s + 1, end_s=at_s + 2)
        )
        measures.session_done(
            session(f"s{number}", arrival_s=at_s, final_first_token_s=at_s + 1, end_s=at_s + 2)
        )
    assert not measures._entered_s
    assert len(measures.waterfall.sessions()) == 3
    assert len(measures.inside_sessions.sums) <= 240


def test_what_could_be_cached_is_counted_in_whole_blocks_and_leaves_a_token_to_compute():
    first = Turn(input_tokens=100, output_tokens=28)
    again = Turn(input_tokens=300, output_tokens=5, prefix_of=TurnRef(0, 0), prefix_tokens=128)
    same = Turn(input_tokens=256, output_tokens=5, prefix_of=TurnRef(0, 1), prefix_tokens=256)
    made = Session(id="s", threads=(Thread(turns=(first, again, same)),))
    # 128 are shared, 127 of them were computed: 1 block of 64. Of the last one's 256 one must be computed: 3.
    assert reusable_tokens(made, 64) == 64 + 192


def test_a_span_is_spread_over_the_cells_that_it_covers():
    series = Series()
    series.spread(0.75, 3.5, 2.0)
    # A quarter of the first second, all of two more, half of the fourth; times 2.
    assert series.sums == [0.5, 2.0, 2.0, 1.0]


def test_a_long_series_gets_coarser_and_loses_nothing():
    series = Series()
    for second in range(10 * CELLS):
        series.add(second, 1.0)
    assert len(series.sums) <= CELLS
    assert series.width_s == 16.0  # 10 does not fit, 16 does
    assert sum(series.sums) == 10 * CELLS
    assert {rate for _, rate in series.rates()[:-1]} == {1.0}


def test_a_gauge_shows_means_of_the_cells_that_were_looked_into():
    gauge = Gauge()
    assert gauge.mean is None
    for at_s, value in ((0.2, 1.0), (0.8, 3.0), (5.5, 10.0)):
        gauge.look(at_s, value)
    assert gauge.means() == [(0.5, 2.0), (5.5, 10.0)]
    assert gauge.mean == pytest.approx(14 / 3)


def test_goodput_counts_what_is_in_time_for_each_slack():
    goodput = Goodput()
    for taken_s in (10.0, 15.0, 16.0, 20.0, 39.0, 41.0):  # alone: 10 s
        goodput.add(taken_s, 10.0, failed=False)
    goodput.add(10.0, 10.0, failed=True)
    assert goodput.share(1.5) == pytest.approx(2 / 7)
    assert goodput.share(2.0) == pytest.approx(4 / 7)
    assert goodput.share(4.0) == pytest.approx(5 / 7)
    assert goodput.rate_per_h(2.0, window_s=1800.0) == 8.0  # 4 in half an hour


@pytest.mark.parametrize(
    ("shares", "index"),
    [([1, 1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([1, 2, 3], 36 / 42), ([0, 0], 1.0)],
)
def test_jain(shares, index):
    jain = Jain()
    assert jain.index is None
    for share in shares:
        jain.add(share)
    assert jain.index == pytest.approx(index)


def test_tenants_are_promised_their_deadline_or_twice_what_it_takes_alone():
    tenants = Tenants()
    tenants.session_done(session("a", tenant="x", end_s=19.0, isolated_s=10.0))  # kept: 19 ≤ 2 × 10
    tenants.session_done(session("b", tenant="x", end_s=19.0, isolated_s=10.0, deadline_s=18.0))  # broken
    tenants.session_done(session("c", tenant="y", arrival_s=5.0, end_s=9.0, isolated_s=1.0, deadline_s=4.0))
    tenants.session_done(session("d", tenant="y", end_s=1.0, isolated_s=9.0, failed=True))  # broken
    kept = {name: (tenant.sessions, tenant.kept) for name, tenant in tenants}
    assert kept == {"x": (2, 1), "y": (2, 1)}
    assert tenants.kept == 0.5
    # Progress: x 10/19 twice, y 1/4 and nothing.
    assert tenants.jain_tenants == pytest.approx(
        (10 / 19 + 1 / 8) ** 2 / (2 * ((10 / 19) ** 2 + (1 / 8) ** 2))
    )
    four = [10 / 19, 10 / 19, 1 / 4, 0]
    assert tenants.jain_sessions == pytest.approx(sum(four) ** 2 / (4 * sum(x * x for x in four)))
