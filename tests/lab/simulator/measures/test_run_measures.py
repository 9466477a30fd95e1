import pytest

from gateway.domain.ids import ReplicaId
from lab.simulator.measures.figures import METRICS, run_figures
from lab.simulator.measures.run_measures import RunMeasures
from lab.simulator.measures.shared import reusable_tokens
from lab.simulator.measures.waterfall import Waterfall
from lab.simulator.results import ReplicaSample, Totals
from lab.workload.trace.format import Session, Thread, Turn, TurnRef
from tests.lab.simulator.measures.outcomes import session, turn


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
