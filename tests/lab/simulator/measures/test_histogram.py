import math
import random

import pytest

from lab.simulator.measures.histogram import ERROR, Histogram


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
