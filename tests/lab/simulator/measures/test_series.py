import pytest

from lab.simulator.measures.series import CELLS, Gauge, Series


def test_a_span_is_spread_over_the_cells_that_it_covers():
    series = Series()
    series.spread(0.75, 3.5, 2.0)
    # A quarter of the first second, all of two more, half of the fourth; times 2.
    assert series.sums == [0.5, 2.0, 2.0, 1.0]


def test_a_long_series_gets_coarser_and_loses_nothing():
    series = Series()
    for second in range(10 * CELLS):
        series.add(second, 1.0)
    assert len(series.sums) <= CELLS
    assert series.width_s == 16.0  # 10 does not fit, 16 does
    assert sum(series.sums) == 10 * CELLS
    assert {rate for _, rate in series.rates()[:-1]} == {1.0}


def test_a_gauge_shows_means_of_the_cells_that_were_looked_into():
    gauge = Gauge()
    assert gauge.mean is None
    for at_s, value in ((0.2, 1.0), (0.8, 3.0), (5.5, 10.0)):
        gauge.look(at_s, value)
    assert gauge.means() == [(0.5, 2.0), (5.5, 10.0)]
    assert gauge.mean == pytest.approx(14 / 3)
