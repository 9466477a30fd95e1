from itertools import pairwise

import pytest

from lab.simulator.experiment.draw import Arrivals, draw, fitting
from tests.lab.workload.trace.made import session as chat

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
