"""The window: additive increase, multiplicative decrease, and what keeps it calm."""

import itertools
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.cpu_pressure import CpuReading
from gateway.admission.gpu_pressure import GpuReading
from gateway.admission.update_window import Window, WindowConfig, WindowInputs
from gateway.domain.decision import WaitReason

CONFIG = WindowConfig(min_feedback_s=10.0)


def seen(
    *,
    gpu=0.0,
    cpu=0.0,
    admitted=10,
    held=1000.0,
    demand=1000.0,
    capacity=None,
    blocked_by=None,
    cpu_limit=math.inf,
    overcommit_sessions=0.0,
    is_loss_known=True,
    kv_share=1.0,
) -> WindowInputs:
    return WindowInputs(
        gpu=GpuReading(pressure=gpu, reason="state_lost", is_loss_known=is_loss_known),
        cpu=CpuReading(pressure=cpu, reason="tools_slow"),
        cpu_limit=cpu_limit,
        admitted=admitted,
        overcommit_sessions=overcommit_sessions,
        with_tools=admitted,
        held=held,
        demand=demand,
        capacity=capacity,
        kv_share=kv_share,
        blocked_by=blocked_by,
    )


class Played:
    def __init__(self, config=CONFIG) -> None:
        self.window = Window(config)
        self.now = 0.0
        self.changes: list[Any] = []

    def run(self, seconds: int, **inputs) -> "Played":
        for _ in range(seconds):
            change = self.window.update(seen(**inputs), now=self.now)
            if change is not None:
                self.changes.append((self.now, change))
            self.now += 1.0
        return self


def test_nothing_limits_before_the_first_overload():
    play = Played().run(100)
    assert play.window.sessions == play.window.budget == math.inf
    assert not play.changes


def test_a_stated_capacity_is_the_first_budget_and_is_followed():
    play = Played().run(1, capacity=1000.0)
    assert play.window.budget == 1000.0
    play.run(1, capacity=2000.0, kv_share=0.9)
    assert play.window.budget == 1800.0
    play.run(30, capacity=None)
    assert play.window.budget == 1800.0
    assert [change.reason for _, change in play.changes] == ["capacity", "capacity"]


def test_a_capacity_that_is_stated_late_replaces_a_budget_that_losses_lowered():
    play = Played().run(12, gpu=2.0)
    assert play.window.budget < 1000.0, "lowered, while no engine stated a capacity"
    play.run(1, capacity=5000.0)
    assert play.window.budget == 5000.0


def test_what_holding_back_gains_is_told_by_what_engines_state_or_more():
    played = Played().run(2, capacity=1000.0)
    assert played.window.reference == played.window.budget == 1000.0
    played.window.budget = 600.0
    assert played.window.reference == 1000.0
    assert Played().window.reference == math.inf


def test_short_overload_changes_nothing_and_persistent_overload_decreases():
    play = Played()
    for _ in range(20):
        play.run(9, gpu=2.0).run(1, gpu=0.7)
    assert not play.changes
    play.run(11, gpu=2.0)
    assert [change[:2] for _, change in play.changes] == [("state_lost", True)]
    assert play.window.budget == pytest.approx(850) and play.window.sessions == pytest.approx(8.5)


def test_one_decrease_a_feedback_time():
    play = Played().run(200, gpu=2.0)
    times = [at for at, change in play.changes if change.is_decrease]
    assert len(times) >= 5
    assert all(later - sooner >= 10.0 for sooner, later in itertools.pairwise(times))
    assert play.window.sessions >= 1.0


def test_cpu_pressure_shrinks_the_window_and_leaves_the_budget():
    play = Played().run(1, capacity=1e6).run(11, cpu=1.5, cpu_limit=4.0, capacity=1e6)
    assert play.window.budget == 1_000_000
    assert play.window.with_tools == pytest.approx(7.0) and play.window.tool_limit() == 4.0
    assert play.window.sessions == math.inf
    play.run(1, cpu=0.7, cpu_limit=4.0, capacity=1e6)
    assert play.window.tool_limit() == pytest.approx(7.0)  # the limit holds only while the pressure does


def test_between_health_and_overload_nothing_changes():
    play = Played().run(11, gpu=2.0).run(500, gpu=0.75, blocked_by=WaitReason.KV_FULL)
    assert len(play.changes) == 1


def test_health_increases_what_holds_somebody_up():
    play = Played().run(11, gpu=2.0)
    budget, sessions = play.window.budget, play.window.sessions
    play.run(30, blocked_by=WaitReason.WINDOW_FULL)
    assert play.window.sessions > sessions and play.window.budget == budget
    sessions = play.window.sessions
    play.run(30, blocked_by=WaitReason.KV_FULL, held=1e6)
    assert play.window.budget > budget and play.window.sessions == sessions
    play.run(200)  # nobody waits: the window opens slowly, up to twice what is in
    assert sessions < play.window.sessions <= 23


def test_the_budget_grows_back_to_its_part_of_the_stated_capacity_and_no_further():
    full = {"capacity": 1000.0, "blocked_by": WaitReason.KV_FULL, "held": 1e6, "demand": 1e6}
    play = Played().run(2000, **full)
    assert play.window.budget == 1000 and len(play.changes) == 1
    play.run(12, gpu=2.0, capacity=1000.0, held=800.0, demand=800.0)
    assert play.window.budget == pytest.approx(680)
    play.run(2000, **full)
    assert play.window.budget == 1000
    for held, is_known, is_more in ((1e9, True, True), (1e9, False, False), (500.0, True, False)):
        unstated = Played().run(12, gpu=2.0)
        assert unstated.window.budget == pytest.approx(850)
        unstated.run(200, **(full | {"capacity": None, "held": held}), is_loss_known=is_known)
        assert unstated.window.budget >= 1000, "it fitted before"
        assert (unstated.window.budget > 1200) is is_more, "nobody says how much fits"


def test_without_an_admitted_session_nothing_decreases():
    for capacity in (None, 1e6):
        play = Played().run(300, gpu=3.0, admitted=0, held=0.0, demand=0.0, capacity=capacity)
        assert play.window.budget == (capacity or math.inf) and play.window.sessions == math.inf


def test_neither_pressure_delays_the_other():
    both = {"gpu": 3.0, "cpu": 4.0, "capacity": 1e6, "held": 9e5, "demand": 9e5}
    play = Played().run(40, **both)
    assert play.window.budget < 800_000 and play.window.with_tools < 7
    play.run(600, gpu=0.0, cpu=0.75, capacity=1e6, held=5e5, blocked_by=WaitReason.KV_FULL)
    assert play.window.budget == 1_000_000, "tools are neither overloaded nor healthy"
    before = play.window.with_tools
    play.run(100, gpu=0.6, cpu=0.0, capacity=1e6, blocked_by=WaitReason.TOOLS_FULL)
    assert play.window.with_tools > before


def test_tools_at_their_floor_are_no_decrease():
    play = Played()
    for _ in range(300):
        change = play.window.update(
            msgspec.structs.replace(seen(cpu=4.0, cpu_limit=10.0), cpu_floor=10.0), now=play.now
        )
        play.changes += [change] if change is not None else []
        play.now += 1.0
        if play.now > 15:
            assert play.window.tool_limit() == 10, "it holds while tools are overloaded"
    assert len(play.changes) == 1


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3), st.integers(0, 50)), max_size=100))
def test_a_stated_capacity_is_the_budget_again_within_34_feedback_times(steps):
    play = Played(WindowConfig(min_feedback_s=3.0))
    for gpu, cpu, admitted in steps:
        play.run(7, gpu=gpu, cpu=cpu, admitted=admitted, held=1e5 * admitted, demand=1e5, capacity=1e6)
    play.run(3 * 36, capacity=1e6, held=5e5, blocked_by=WaitReason.KV_FULL)
    assert play.window.budget == 1_000_000


def test_who_thrashes_has_to_leave_and_who_would_fit_does_not():
    full = {"gpu": 2.0, "capacity": 1000.0, "demand": 1500.0}
    left = 10 * 0.85 / 1.5  # of ten, as many as there is room for
    thrashes = Played().run(1, capacity=1000.0).run(11, **full, held=1500.0)
    assert thrashes.window.sessions == pytest.approx(left)
    assert Played().run(1, capacity=1000.0).run(11, **full, held=999.0).window.sessions == math.inf


def test_as_many_stay_as_engines_have_the_time_for():
    thrashing = {"admitted": 40, "held": 40_000.0, "demand": 40_000.0, "capacity": 10_000.0}
    assert Played().run(12, gpu=1.5, **thrashing).window.sessions == 20
    assert Played().run(12, gpu=1.5, overcommit_sessions=33.0, **thrashing).window.sessions == 33


def test_a_capacity_that_hardly_changes_changes_nothing():
    play = Played()
    for second in range(60):  # a host tier counts by what sessions take from turn to turn
        play.run(1, capacity=1000.0 + second % 7)
    assert len(play.changes) == 1
    for second in range(100):
        play.run(1, capacity=1000.0 + 2 * second)
    assert 1150 < play.window.budget < 1200 and len(play.changes) < 6


def test_a_stated_capacity_is_believed_for_the_most_part():
    play = Played().run(1, capacity=1000.0).run(500, gpu=9.0, capacity=1000.0, held=10.0, demand=10.0)
    assert play.window.budget == 600


def test_feedback_time_is_bounded():
    window = Window(WindowConfig(min_feedback_s=2.0, max_feedback_s=20.0))
    for cycle_s, expected in ((0.1, 2.0), (7.0, 7.0), (500.0, 20.0)):
        window.set_feedback(cycle_s)
        assert window.feedback_s == expected


@given(
    st.lists(
        st.tuples(
            st.floats(0, 3),
            st.floats(0, 3),
            st.integers(0, 50),
            st.floats(0, 1e6),
            st.sampled_from([None, WaitReason.WINDOW_FULL, WaitReason.KV_FULL]),
            st.sampled_from([None, 1e5, 1e6]),
        ),
        max_size=120,
    )
)
def test_whatever_happens_it_stays_sane(steps):
    play = Played(WindowConfig(min_feedback_s=3.0))
    for gpu, cpu, admitted, held, blocked_by, capacity in steps:
        before = len(play.changes)
        play.run(
            1,
            gpu=gpu,
            cpu=cpu,
            admitted=admitted,
            held=held,
            demand=held * 1.2,
            blocked_by=blocked_by,
            capacity=capacity,
        )
        assert play.window.sessions >= 1.0 and play.window.budget > 0
        assert all(change.reason for _, change in play.changes[before:])
    for of_tools in (False, True):
        decreases = [at for at, (_, is_one, is_of) in play.changes if is_one and is_of is of_tools]
        assert all(later - sooner >= 3.0 for sooner, later in itertools.pairwise(decreases))
