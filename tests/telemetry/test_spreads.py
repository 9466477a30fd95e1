"""Histograms: what a p95 that Prometheus reads from them is worth."""

import itertools
import math
import random

import pytest

from gateway.telemetry.spreads import RATIO, Spread, growing


def quantile(spread: Spread, share: float) -> float:
    """As Prometheus' `histogram_quantile` interpolates."""
    rank, below = share * sum(spread.counts), 0
    for (low, high), count in zip(itertools.pairwise((0.0, *spread.bounds)), spread.counts, strict=False):
        if below + count >= rank:
            return low + (high - low) * (rank - below) / count
        below += count
    raise AssertionError("beyond the last bound")


def draws(name: str) -> list[float]:
    dice = random.Random(name)
    kinds = {
        "lognormal": lambda: dice.lognormvariate(2.0, 1.0),
        "exponential": lambda: 30 * dice.expovariate(1.0),
        "uniform": lambda: dice.uniform(5, 50),
        "two humps": lambda: dice.gauss(200, 20) if dice.random() < 0.1 else dice.gauss(5, 0.5),
        "long tail": lambda: min(9_000.0, dice.paretovariate(1.2)),
    }
    return [max(0.01, kinds[name]()) for _ in range(20_000)]


@pytest.mark.parametrize("name", ["lognormal", "exponential", "uniform", "two humps", "long tail"])
@pytest.mark.parametrize(("share", "off"), [(0.5, 0.1), (0.95, 0.1), (0.99, 0.2)])
def test_a_quantile_is_right(name, share, off):
    values = draws(name)
    spread = Spread(growing(0.1, 20_000))
    spread.add_all(values)
    true = sorted(values)[math.ceil(share * len(values)) - 1]
    assert quantile(spread, share) == pytest.approx(true, rel=off)


def test_a_quantile_of_equal_values_is_off_by_a_bucket_at_most():
    for value in (0.5, 1.0, 7.3, 100.0, 1234.5):
        spread = Spread(growing(0.1, 20_000))
        spread.add_all([value] * 100)
        assert 1 / 1.21 < quantile(spread, 0.95) / value < 1.21


def test_bounds_grow_and_end_where_they_were_told():
    bounds = growing(0.1, 20_000)
    assert (bounds[0], bounds[-1]) == (0.1, 20_000)
    steps = [after / before for before, after in itertools.pairwise(bounds)]
    assert min(steps) > 1.1 and max(steps) < RATIO * 1.01
    assert len(bounds) < 75
