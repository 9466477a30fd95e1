import math
import random

import pytest

from gateway.cost.fit import SETTLING, UNUSUAL, DecayingFit


def teach(fit: DecayingFit, truth: list[float], count: int, rng: random.Random, noise: float = 0.0) -> None:
    for _ in range(count):
        features = [rng.uniform(0.1, 1) for _ in truth]
        seconds = sum(c * x for c, x in zip(truth, features, strict=True))
        fit.observe(features, seconds * rng.lognormvariate(0, noise))


def test_it_starts_from_its_belief() -> None:
    assert DecayingFit((1.0, 0.5), trust=1).predict((2.0, 4.0)) == 4.0


def test_it_finds_what_is_true() -> None:
    fit = DecayingFit((1.0, 1.0), trust=1)
    teach(fit, [3.0, 0.3], 200, random.Random(1), noise=0.1)
    assert fit.predict((1.0, 0.0)) == pytest.approx(3.0, rel=0.1)
    assert fit.predict((0.0, 1.0)) == pytest.approx(0.3, abs=0.15)


def test_one_observation_corrects_the_belief_as_a_whole() -> None:
    fit = DecayingFit((1.0, 1.0), trust=0)
    fit.observe((1.0, 1.0), 20.0)
    assert fit.coefficients == pytest.approx([10.0, 10.0])


def test_trust_holds_against_the_first_observations() -> None:
    fit = DecayingFit((1.0,), trust=1)
    fit.observe((1.0,), 1.2)
    assert 1.0 < fit.coefficients[0] < 1.2


def test_a_feature_that_was_never_there_follows_the_whole() -> None:
    fit = DecayingFit((1.0, 1.0), trust=0)
    for _ in range(20):
        fit.observe((1.0, 0.0), 5.0)
    assert fit.predict((0.0, 1.0)) == pytest.approx(5.0, rel=0.05)


def test_no_coefficient_is_negative() -> None:
    fit = DecayingFit((1.0, 1.0), trust=1)
    rng = random.Random(2)
    for _ in range(100):
        x, y = rng.uniform(1, 2), rng.uniform(0.1, 0.5)
        fit.observe((x, y), x - y)
    assert min(fit.coefficients) >= 0


def test_features_of_nothing_leave_the_belief() -> None:
    fit = DecayingFit((1.0, 1.0), trust=0)
    fit.observe((0.0, 0.0), 1.0)
    assert fit.coefficients == [1.0, 1.0]


def test_the_unusual_moves_no_more_than_the_edge_of_the_usual() -> None:
    fit, rng = DecayingFit((1.0,), trust=1), random.Random(3)
    teach(fit, [2.0], 100, rng, noise=0.1)
    for _ in range(10):
        teach(fit, [2.0], 4, rng, noise=0.1)
        fit.observe((1.0,), 16.0)
    assert fit.coefficients[0] == pytest.approx(2.0, rel=0.04)


@pytest.mark.parametrize("factor", [4.0, 1.5, 0.25])
def test_it_follows_a_replica_that_changes(factor: float) -> None:
    fit, rng = DecayingFit((1.0,), trust=1), random.Random(4)
    teach(fit, [1.0], 300, rng, noise=0.1)
    teach(fit, [factor], 4 * SETTLING, rng, noise=0.1)
    assert fit.coefficients[0] == pytest.approx(factor, rel=0.3)


def test_far_too_long_is_corrected_as_fast_as_far_too_short() -> None:
    for factor in (30.0, 1 / 30):
        fit = DecayingFit((1.0,), trust=1)
        teach(fit, [factor], SETTLING * 3, random.Random(5), noise=0.1)
        assert abs(math.log(fit.coefficients[0] / factor)) < math.log(UNUSUAL)
