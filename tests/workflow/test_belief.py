"""Whom to believe: whoever found likely what came, and nobody for ever."""

from math import log

import pytest

from gateway.workflow.belief import ALPHAS, Belief, Plain


def test_an_average_is_a_distribution_of_all_views():
    mixed, tables = [0.5, 0.3, 0.2], [Plain([2.0, 0.0, 0.0], 2.0)]
    shares = Belief().average(mixed, tables)
    views = [[(count + alpha) / (2 + 3 * alpha) for count in (2, 0, 0)] for alpha in ALPHAS]
    assert sum(shares) == pytest.approx(1.0)
    assert shares[0] == pytest.approx((0.5 + sum(view[0] for view in views)) / 4)


def test_whoever_is_right_is_believed_and_lessons_are_taken_back():
    known, mixed, tables = Belief(), [0.1, 0.9], [Plain([9.0, 1.0], 10.0)]
    before = known.average(mixed, tables)[0]
    known.learn(mixed, tables, 1)
    assert known.average(mixed, tables)[0] < before - 0.1
    known.learn(mixed, tables, 1, -1.0)
    assert known.average(mixed, tables)[0] == pytest.approx(before)
    for _ in range(20):
        known.learn(mixed, tables, 0)
    assert known.average(mixed, tables)[0] > 0.85 > before


def test_it_loses_little_to_the_best_view():
    known, tables = Belief(), [Plain([1.0, 0.0, 0.0], 1.0)]
    loss = 0.0
    for _ in range(30):
        shares = known.average([0.02, 0.02, 0.96], tables)
        loss -= log(shares[0])
        known.learn([0.02, 0.02, 0.96], tables, 0)
    best = -30 * max(log((1 + alpha) / (1 + 3 * alpha)) for alpha in ALPHAS)
    assert loss < best + log(1 + len(ALPHAS))
