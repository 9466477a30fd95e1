import re

import pytest

from lab.simulator.report.svg import Frame, Scale, short


def test_a_scale_maps_ends_to_ends_and_keeps_what_is_beyond_near():
    scale = Scale(10.0, 20.0, 100.0, 300.0)
    assert (scale.at(10), scale.at(15), scale.at(20)) == (100, 200, 300)
    assert (scale.at(-1000), scale.at(1000)) == (96, 304)
    log = Scale(1.0, 100.0, 0.0, 200.0, is_log=True)
    assert (log.at(1), log.at(10), log.at(100)) == pytest.approx((0, 100, 200))
    assert Scale(5.0, 5.0, 0.0, 10.0).at(5.0) == 5.0


@pytest.mark.parametrize("span", [(0.0, 1.0), (0.0, 7.0), (0.0, 0.03), (40.0, 140.0), (0.0, 123_456.0)])
def test_ticks_are_few_round_and_inside(span):
    low, high = span
    ticks = Scale(low, high, 0, 1).ticks()
    assert 3 <= len(ticks) <= 6
    assert all(span[0] <= tick <= span[1] * 1.001 for tick in ticks)
    assert all(len(f"{tick:.10g}".replace(".", "").strip("0")) <= 3 for tick in ticks)


@pytest.mark.parametrize("span", [(1.0, 1000.0), (300.0, 6000.0), (0.01, 20.0), (45.0, 60.0)])
def test_ticks_of_a_logarithmic_scale_are_inside_too(span):
    low, high = span
    ticks = Scale(low, high, 0, 1, is_log=True).ticks()
    assert ticks == sorted(ticks)
    assert all(span[0] * 0.99 <= tick <= span[1] * 1.01 for tick in ticks)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (1234, "1,234"),
        (45_000, "45k"),
        (2.5e6, "2.5M"),
        (3e9, "3G"),
        (0.001, "0.001"),
    ],
)
def test_numbers_for_axes_are_short(value, text):
    assert short(value) == text


def test_nothing_is_drawn_outside_the_drawing():
    frame = Frame(x=(0.0, 10.0), y=(1.0, 1000.0), x_title="x", y_title="y", log_y=True)
    frame.line([(0, 1), (5, 30), (10, 1000)], 0, "p", marks=True)
    frame.band([(0, 1), (10, 500)], [(0, 2), (10, 1000)], 9)
    text = frame.svg("label")
    for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", text):
        assert 0 <= float(x) <= Frame.WIDTH and 0 <= float(y) <= Frame.HEIGHT
    assert 'class="band c1 d1"' in text  # the ninth colour is the first again, dashed
