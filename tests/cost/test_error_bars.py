import random

from gateway.cost.error_bars import WINDOW, ErrorBars


def test_without_experience_the_bars_are_wide() -> None:
    errors = ErrorBars(4.0)
    assert errors.bars == (0.25, 4.0)
    for _ in range(8):
        errors.observe(1.0)
    assert errors.bars == (0.25, 4.0)


def test_nine_are_enough() -> None:
    errors = ErrorBars(4.0)
    for ratio in (1.0, 1.5, 0.5, 0.9, 1.1, 1.0, 1.0, 0.8, 1.2):
        errors.observe(ratio)
    assert errors.bars == (0.5, 1.5)


def test_a_tenth_lies_beyond_each_bar() -> None:
    errors = ErrorBars(4.0)
    for number in range(99):
        errors.observe((1 + number * 37 % 99) / 100)
    assert errors.bars == (0.10, 0.90)


def test_what_is_long_ago_is_forgotten() -> None:
    errors, rng = ErrorBars(4.0), random.Random(1)
    for _ in range(3 * WINDOW):
        errors.observe(rng.uniform(5, 6))
    for _ in range(WINDOW):
        errors.observe(rng.uniform(1, 2))
    low, high = errors.bars
    assert 1 <= low < high <= 2
    assert len(errors._recent) == len(errors._sorted) == WINDOW
    assert sorted(errors._recent) == errors._sorted


def test_eight_in_ten_lie_within() -> None:
    errors, rng, within = ErrorBars(4.0), random.Random(2), 0
    for _ in range(2000):
        ratio = rng.lognormvariate(0.3, 0.4)
        low, high = errors.bars
        within += low <= ratio <= high
        errors.observe(ratio)
    assert 0.78 < within / 2000 < 0.84
