"""The virtual clock: one order, time never goes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.simulator.kernel import Kernel


@given(st.lists(st.integers(0, 5)))
def test_by_time_and_then_in_the_order_of_asking(times: list[int]):
    kernel = Kernel()
    ran: list[tuple[float, int]] = []
    for number, time_s in enumerate(times):
        kernel.at(time_s, lambda n=number: ran.append((kernel.now, n)))
    kernel.run()
    assert ran == sorted(zip(times, range(len(times)), strict=True))
    assert kernel.actions == len(times)


def test_what_is_asked_for_now_runs_now_behind_the_others():
    kernel = Kernel()
    ran: list[str] = []

    def first() -> None:
        kernel.after(0.0, ran.append, "asked for by the first")
        ran.append("first")

    kernel.at(1.0, first)
    kernel.at(1.0, ran.append, "second")
    kernel.run()
    assert ran == ["first", "second", "asked for by the first"]
    assert kernel.now == 1.0


def test_called_off():
    kernel = Kernel()
    ran: list[str] = []
    alarm = kernel.at(1.0, ran.append, "never")
    kernel.at(2.0, ran.append, "later").call_off()
    alarm.call_off()
    alarm.call_off()
    kernel.run()
    assert ran == []


def test_stopped():
    kernel = Kernel()
    ran: list[str] = []
    kernel.at(1.0, kernel.stop)
    kernel.at(1.0, ran.append, "never")
    kernel.run()
    assert ran == []


@pytest.mark.parametrize("time_s", [0.5, float("nan")])
def test_there_is_no_going_back(time_s: float):
    kernel = Kernel()
    kernel.at(1.0, lambda: None)
    kernel.run()
    with pytest.raises(ValueError, match=r"is not a time from 1\.0 s on"):
        kernel.at(time_s, lambda: None)
