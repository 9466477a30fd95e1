"""Sums that fade."""

import math

import pytest

from gateway.admission.evidence import Evidence


def test_turns_are_summed_up_by_what_they_say():
    seen = Evidence()
    seen.saw_turn(1000, 100, None)
    seen.saw_turn(1000, 300, 0.01)
    seen.saw_turn(500, None, 0.01)
    assert (seen.turns, seen.expected, seen.lost) == (2, 2000, 400)
    assert (seen.timed_turns, seen.lost_s) == (1, 3.0)
    assert (seen.blind_turns, seen.blind) == (1, 500)


def test_everything_fades_alike_so_that_rates_stay():
    seen = Evidence()
    for _ in range(1000):
        seen.fade(1.0, lasts_s=20.0)
        seen.saw_turn(1000, 100, 0.01)
    assert seen.span_s == pytest.approx(20.0, rel=0.05)
    assert seen.turns / seen.span_s == pytest.approx(1.0, rel=0.05)
    before = seen.lost
    seen.fade(20.0, lasts_s=20.0)
    assert seen.lost == pytest.approx(before / math.e)
    assert seen.span_s == pytest.approx(20.0 + 20.0 / math.e, rel=0.05)
    seen.clear()
    assert seen == Evidence()
