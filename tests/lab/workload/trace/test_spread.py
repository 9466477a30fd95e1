"""Quantities that vary."""

import statistics
from random import Random

import pytest

from lab.workload.trace.spread import Spread


def _drawn(spread, count=4000):
    rng = Random(1)
    return [spread.draw(rng) for _ in range(count)]


def test_half_lie_below_the_median():
    drawn = _drawn(Spread(median=10, sigma=0.8))
    assert statistics.median(drawn) == pytest.approx(10, rel=0.1)
    assert len(set(drawn)) > 3000


def test_bounds_hold():
    drawn = _drawn(Spread(median=10, sigma=2, least=5, most=20))
    assert (min(drawn), max(drawn)) == (5, 20)


def test_without_sigma_it_is_the_median_and_costs_no_chance():
    rng = Random(1)
    assert Spread(median=2.6).count(rng) == 3
    assert rng.getstate() == Random(1).getstate()
