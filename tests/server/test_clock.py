"""The clock never goes back, and follows the system's without jumps."""

import time

from hypothesis import given
from hypothesis import strategies as st

from gateway.server.clock import HORIZON_S, MAX_SLEW, Slew, SteadyClock

STEP_S = st.floats(-7200, 7200)


def follow(slew: Slew, *, monotonic: float, offset: float, seconds: int) -> float:
    for _ in range(seconds):
        monotonic += 1.0
        slew.adjust(wall=monotonic + offset, monotonic=monotonic)
    return monotonic


def test_without_a_step_it_is_the_systems():
    slew = Slew(wall=1000.0, monotonic=0.0)
    now = follow(slew, monotonic=0.0, offset=1000.0, seconds=100)
    assert slew.at(now) == 1100.0


def test_a_step_is_made_up_for_and_no_duration_is_far_off():
    slew = Slew(wall=1000.0, monotonic=0.0)
    slew.adjust(wall=1003.0, monotonic=0.0)
    assert slew.at(0.0) == 1000.0, "no jump"
    assert slew.at(1.0) == 1001.0 + MAX_SLEW
    now = follow(slew, monotonic=0.0, offset=1003.0, seconds=200)
    assert abs(slew.at(now) - (now + 1003.0)) < 0.001


@given(st.lists(st.tuples(st.floats(0, 3600), STEP_S), max_size=30))
def test_it_never_goes_back_and_runs_at_nearly_the_monotonic_rate(steps):
    slew, monotonic, offset = Slew(wall=1e9, monotonic=0.0), 0.0, 1e9
    for pause, step in steps:
        before, monotonic, offset = slew.at(monotonic), monotonic + pause, offset + step
        passed = slew.at(monotonic) - before
        assert (1 - MAX_SLEW) * pause - 1e-3 <= passed <= (1 + MAX_SLEW) * pause + 1e-3
        slew.adjust(wall=monotonic + offset, monotonic=monotonic)
        assert slew.at(monotonic) >= before


def test_an_hour_is_made_up_for_in_the_end():
    slew = Slew(wall=0.0, monotonic=0.0)
    now = follow(slew, monotonic=0.0, offset=3600.0, seconds=int(3600 / MAX_SLEW + 20 * HORIZON_S))
    assert abs(slew.at(now) - (now + 3600.0)) < 0.01


def test_the_clock_begins_with_the_time_of_day():
    clock = SteadyClock()
    clock.follow()
    assert abs(clock() - time.time()) < 60
