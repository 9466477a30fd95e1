"""Levels by footprint and service, promotion by waiting, a window that forgets."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpike_vllm.coordinator import Coordinator, CoordinatorConfig, Rank, ServiceWindow
from turnpike_vllm.hints import ServiceClass

REACTIVE, PROACTIVE = ServiceClass.REACTIVE, ServiceClass.PROACTIVE
COORDINATOR = Coordinator(CoordinatorConfig())


def rank(
    *,
    service: ServiceClass = REACTIVE,
    level: int = 0,
    task: float = 0.0,
    arrived: float = 0.0,
    now: float = 0.0,
) -> Rank:
    return COORDINATOR.rank(service=service, level=level, task=task, arrived=arrived, now=now)


@pytest.mark.parametrize(
    ("added", "attained", "level"),
    [
        (10, 0, 0),
        (1_024, 0, 0),
        (1_025, 0, 1),
        (16_000, 0, 2),
        (99_999, 0, 3),
        (10, 8_193, 1),
        (10, 10**6, 3),
    ],
)
def test_levels(added: int, attained: int, level: int) -> None:
    assert COORDINATOR.level(added_tokens=added, attained=attained) == level


def test_class_then_level_then_the_task_s_age() -> None:
    expected = [
        rank(level=0, task=5, arrived=8),
        rank(level=0, task=6, arrived=1),
        rank(level=1, task=0),
        rank(service=PROACTIVE),
    ]
    shuffled = list(expected)
    random.Random(1).shuffle(shuffled)
    assert sorted(shuffled) == expected


def test_waiting_raises_a_level_at_a_time_and_is_bounded() -> None:
    seen = [rank(level=3, now=now).level for now in (0, 4.9, 5, 10, 15, 20)]
    assert seen == [3, 3, 2, 1, 0, 0]


def test_overdue_goes_before_everything_in_order_of_arrival() -> None:
    late = rank(service=PROACTIVE, level=3, arrived=0.0, now=30.0)
    later = rank(service=PROACTIVE, level=3, arrived=-1.0, now=30.0)
    assert later < late < rank(arrived=29.0, now=30.0)


MOMENTS = st.floats(0, 4e9) | st.floats(0, 1e-300) | st.sampled_from([0.0, 1.7e9 + 1 / 3, 2.0**53, 1e300])


@given(MOMENTS, st.sampled_from([5.0, 10.0, 15.0, 30.0]), st.integers(-3, 3))
def test_what_is_announced_is_always_to_come_and_has_happened_by_then(
    arrived: float, waited: float, steps: int
) -> None:
    """Also exactly when a rank changes, and a float or two beside that."""
    now = arrived + waited
    for _ in range(abs(steps)):
        now = math.nextafter(now, math.inf if steps > 0 else 0.0)
    before = rank(level=3, arrived=arrived, now=now)
    rise = COORDINATOR.next_rise(arrived=arrived, now=now)
    if rise is None:
        assert not before.not_overdue
        return
    assert rise > now
    assert rank(level=3, arrived=arrived, now=math.nextafter(rise, 0.0)) == before
    assert rank(level=3, arrived=arrived, now=rise) < before


@given(MOMENTS)
def test_a_call_changes_its_rank_a_few_times_and_is_overdue_then(arrived: float) -> None:
    now, changes = arrived, 0
    while (rise := COORDINATOR.next_rise(arrived=arrived, now=now)) is not None:
        now, changes = rise, changes + 1
        assert changes <= COORDINATOR.config.levels
    assert not rank(arrived=arrived, now=now).not_overdue


def test_a_window_forgets() -> None:
    window = ServiceWindow(80.0)
    for second in range(0, 100, 10):
        window.add(1, now=second)
    assert window.slide(now=90.0) == 8
    assert window.slide(now=120.0) == 5
    assert window.slide(now=1_000.0) == 0
    assert window.slide(now=0.0) == 0  # a clock that goes back forgets nothing and breaks nothing


def test_service_elsewhere_counts_once() -> None:
    window = ServiceWindow(60.0)
    window.is_at_least(500, now=1.0)
    window.is_at_least(400, now=2.0)
    window.add(10, now=2.0)
    assert window.total == 510


@given(st.lists(st.tuples(st.integers(0, 1_000), st.floats(0, 30)), max_size=40))
def test_a_window_never_counts_what_is_not_there(served: list[tuple[int, float]]) -> None:
    window, now = ServiceWindow(60.0), 0.0
    log: list[tuple[float, int]] = []
    for tokens, passed in served:
        now += passed
        window.add(tokens, now=now)
        log.append((now, tokens))
        surely = sum(tokens for at, tokens in log if now - at <= 52.0)
        possibly = sum(tokens for at, tokens in log if now - at <= 60.0)
        assert surely <= window.total <= possibly
