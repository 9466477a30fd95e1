"""Rules of admission, left out one at a time."""

import pytest

from benchmarks.ablation import MOST_SESSIONS, RULES, drawn, interval, left_out
from benchmarks.harmless import laid_out


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_there_before_while_and_after_it_is_left_out(name):
    rule = RULES[name]
    before = getattr(rule.owner, rule.attribute)
    with left_out(rule):
        assert getattr(rule.owner, rule.attribute) is rule.instead is not before
    assert getattr(rule.owner, rule.attribute) is before
    with pytest.raises(ZeroDivisionError), left_out(rule):
        _ = 1 / 0
    assert getattr(rule.owner, rule.attribute) is before


def test_of_ratios_the_geometric_mean_and_how_sure_it_is():
    middle, low, high = interval([2.0, 0.5] * 8)
    assert middle == pytest.approx(1.0)
    assert low == pytest.approx(1 / high) and 1.2 < high < 1.5
    assert interval([1.1]) == pytest.approx((1.1, 1.1, 1.1))


@pytest.mark.slow
def test_points_are_drawn_alike_and_have_few_sessions():
    points = drawn(3, draw=5)
    assert points == drawn(3, draw=5) != drawn(3, draw=6)
    assert all(len(laid_out(point).setting.workload) <= MOST_SESSIONS for point in points)
