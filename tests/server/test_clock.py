"""The clock begins with the time of day, and steps of the system's time do not move it."""

import time

from gateway.server.clock import SteadyClock


def test_a_step_of_the_systems_time_moves_nothing(monkeypatch):
    clock = SteadyClock()
    before = clock()
    assert abs(before - time.time()) < 60
    for step_s in (-7200, 7200):
        monkeypatch.setattr(time, "time", lambda step_s=step_s: before + step_s)
        assert before <= clock() < before + 60
