"""Streaming quantiles: right for one mode and for two, with few observations and with many."""

import math
import random
from typing import Any

import pytest

from gateway.tool_probe.quantiles import LogQuantiles


def filled(values, half_life: float = 1e9) -> Any:
    found: Any = LogQuantiles(low=0.001, half_life=half_life)
    for value in values:
        found.add(value)
    return found


def test_before_the_first():
    empty = LogQuantiles(low=0.001)
    assert empty.quantile(0.95) is None and empty.weight == 0
    assert empty.mu == math.log(0.001) and empty.sigma == 1.0


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_quantiles_of_many(share):
    rng = random.Random(1)
    values = sorted(rng.lognormvariate(0.0, 1.5) for _ in range(4000))
    found = filled(values)
    assert found.quantile(share) == pytest.approx(values[int(share * len(values))], rel=0.15)
    assert found.mu == pytest.approx(0.0, abs=0.1) and found.sigma == pytest.approx(1.5, rel=0.05)


def test_two_modes_are_not_smoothed_over():
    found = filled([0.1] * 90 + [100.0] * 10)
    assert found.quantile(0.5) < 0.2 and found.quantile(0.95) == pytest.approx(100.0, rel=0.3)


def test_a_few_observations_leave_room():
    found = filled([1.0, 1.1, 0.9])
    assert 1.2 < found.quantile(0.95) < 10.0


def test_what_is_old_is_forgotten():
    found = filled([10.0] * 200 + [0.1] * 200, half_life=20)
    assert found.quantile(0.9) < 0.2 and found.weight < 40


def test_out_of_bounds():
    found = filled([0.0, -1.0, 1e12] + [1.0] * 60)
    assert found.quantile(0.0) >= 0.001 and found.quantile(1.0) > 1000.0


def test_it_goes_on_for_ever():
    found = filled([1.0] * 20_000, half_life=5)
    assert found.quantile(0.5) == pytest.approx(1.0, rel=0.15)


def test_no_quantile_is_beyond_the_largest_value_however_many_there_were():
    known = LogQuantiles(low=0.001, half_life=300)
    for _ in range(2_000):
        known.add(2.5)
        assert (known.counted(1.0 - 1e-9) or 0.0) <= 2.5 * 1.25 + 1e-6
