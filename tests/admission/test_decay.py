"""Statistics that forget."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.decay import DecayedHistogram, DecayedMean, TurnGrowth, TurnHazard


def test_a_mean_forgets_at_its_half_life():
    mean = DecayedMean(half_life=10)
    for _ in range(200):
        mean.add(0.0)
    for _ in range(10):
        mean.add(1.0)
    assert mean.mean(0.0, 0.0) == pytest.approx(0.5, abs=0.01)


def test_a_mean_without_observations_is_its_prior():
    assert DecayedMean(half_life=10).mean(7.0) == 7.0


@given(st.lists(st.floats(0.2, 1e5), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_quantiles_are_right_to_within_a_bucket(values, share):
    histogram = DecayedHistogram(low=0.1, ratio=1.2, half_life=1e9)
    for value in values:
        histogram.add(value)
    found = histogram.quantile(share)
    ordered = sorted(values)
    rank = share * len(ordered)
    lowest, highest = ordered[max(0, int(rank - 1.001))], ordered[min(len(ordered) - 1, int(rank + 0.001))]
    assert lowest / 1.001 <= found <= highest * 1.2 * 1.001


def test_quantiles_forget():
    histogram = DecayedHistogram(low=0.1, half_life=10)
    for _ in range(100):
        histogram.add(1.0)
    for _ in range(100):
        histogram.add(100.0)
    assert histogram.quantile(0.5) == pytest.approx(100.0, rel=0.25)
    assert (histogram.quantile(0.0005) or 0.0) < 2.0


def test_weights_are_rescaled_before_they_overflow():
    histogram = DecayedHistogram(low=1.0, half_life=0.1)
    hazard = TurnHazard(half_life=0.1)
    for _ in range(400):
        histogram.add(3.0)
        hazard.saw(1)
        hazard.saw_end(1)
    assert histogram.quantile(0.5) == pytest.approx(3.0, rel=0.25)
    assert 0.0 < hazard.chance(1) < 1.0


def test_what_is_out_of_range_counts_at_the_border():
    histogram = DecayedHistogram(low=1.0, ratio=2.0, buckets=3, half_life=1e9)
    assert histogram.quantile(0.5) is None
    histogram.add(0.001)
    histogram.add(1e9)
    assert histogram.quantile(0.4) == 1.0
    assert histogram.quantile(1.0) == histogram.quantile(1.1) == 4.0


def test_the_chance_of_an_end_is_learned_by_turn_number():
    hazard = TurnHazard(half_life=1e6)
    for _ in range(1000):
        for turn in range(1, 5):
            hazard.saw(turn)
        hazard.saw_end(4)
    assert hazard.chance(1) < 0.01 and hazard.chance(2) < 0.01
    assert 0.4 < hazard.chance(4) < 0.6  # turns 3 and 4 are one class
    assert hazard.survival(1, (0, 1, 8))[0] == 1.0
    assert hazard.survival(1, (8,))[0] < 0.4


def test_sessions_that_still_live_count_for_the_turns_they_lived():
    """The chance must not come from those alone that ended already, which are the short ones."""
    rng = random.Random(1)
    hazard = TurnHazard(half_life=1e6)
    for _ in range(2000):
        watched = rng.randrange(1, 30)  # we look away after so many turns
        for turn in range(1, watched + 1):
            hazard.saw(turn)
            if rng.random() < 0.1:
                hazard.saw_end(turn)
                break
    for turn in (1, 2, 4, 8, 16):
        assert hazard.chance(turn) == pytest.approx(0.1, abs=0.03)
    assert hazard.survival(1, (10,))[0] == pytest.approx(0.9**10, rel=0.15)


def test_an_end_can_be_taken_back():
    hazard = TurnHazard(half_life=1e6)
    hazard.saw(3)
    before = hazard.chance(3)
    hazard.saw_end(3)
    assert hazard.chance(3) > before
    hazard.saw_end(3, by=-1.0)
    assert hazard.chance(3) == pytest.approx(before)
    hazard.saw_end(3, by=-1.0)  # never below nothing
    assert hazard.chance(3) == pytest.approx(before)


def test_a_type_that_is_new_is_like_the_others():
    known, new = TurnHazard(half_life=1e6), TurnHazard(half_life=1e6)
    for _ in range(1000):
        known.saw(1)
        known.saw_end(1)
    assert new.chance(1, known) == pytest.approx(known.chance(1))
    assert new.chance(1) == pytest.approx(0.05)
    assert new.chance(0) == new.chance(1)  # before its first turn
    assert new.survival(200, (32,))[0] == pytest.approx(0.95**32)


def test_turns_that_nobody_made_yet_are_expected_to_be_like_those_that_were():
    growth = TurnGrowth(half_life=1000)
    for turn in (2, 3, 4):
        for _ in range(100):
            growth.saw(turn, 4_000.0)
    assert growth.mean(30, 1_000.0) == pytest.approx(4_000, rel=0.05)
    few = TurnGrowth(half_life=1000)
    assert few.mean(30, 1_000.0) == 1_000.0
    assert few.mean(30, 1_000.0, growth) == pytest.approx(4_000, rel=0.05), "as of all types"
