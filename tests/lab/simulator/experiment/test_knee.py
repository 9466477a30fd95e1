"""Where knees are found."""

import pytest

from lab.simulator.experiment.knee import BEHIND, SATURATED, Slow, find_knee


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
