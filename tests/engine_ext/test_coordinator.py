"""Class, age of the task, and promotion by waiting."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from turnpike_vllm.coordinator import Coordinator, CoordinatorConfig, Rank
from turnpike_vllm.hints import ServiceClass

REACTIVE, PROACTIVE = ServiceClass.REACTIVE, ServiceClass.PROACTIVE
COORDINATOR = Coordinator(CoordinatorConfig())


def rank(
    *,
    service: ServiceClass = REACTIVE,
    task: float = 0.0,
    arrived: float = 0.0,
    now: float = 0.0,
) -> Rank:
    return COORDINATOR.rank(service=service, task=task, arrived=arrived, now=now)


def test_class_then_the_task_s_age_then_arrival() -> None:
    expected = [
        rank(task=0),
        rank(task=5, arrived=8),
        rank(task=6, arrived=1),
        rank(task=6, arrived=2),
        rank(service=PROACTIVE),
    ]
    shuffled = list(expected)
    random.Random(1).shuffle(shuffled)
    assert sorted(shuffled) == expected


def test_overdue_goes_before_everything_in_order_of_arrival() -> None:
    late = rank(service=PROACTIVE, arrived=0.0, now=30.0)
    later = rank(service=PROACTIVE, arrived=-1.0, now=30.0)
    assert later < late < rank(arrived=29.0, now=30.0)


MOMENTS = st.floats(0, 4e9) | st.floats(0, 1e-300) | st.sampled_from([0.0, 1.7e9 + 1 / 3, 2.0**53, 1e300])


@given(MOMENTS, st.sampled_from([0.0, 10.0, 30.0]), st.integers(-3, 3))
def test_what_is_announced_is_always_to_come_and_has_happened_by_then(
    arrived: float, waited: float, steps: int
) -> None:
    """Also exactly when a rank changes, and a float or two beside that."""
    now = arrived + waited
    for _ in range(abs(steps)):
        now = math.nextafter(now, math.inf if steps > 0 else 0.0)
    before = rank(arrived=arrived, now=now)
    rise = COORDINATOR.next_rise(arrived=arrived, now=now)
    if rise is None:
        assert not before.not_overdue
        return
    assert rise > now
    assert rank(arrived=arrived, now=math.nextafter(rise, 0.0)) == before
    assert rank(arrived=arrived, now=rise) < before


@given(MOMENTS)
def test_a_call_is_overdue_after_its_one_rise(arrived: float) -> None:
    rise = COORDINATOR.next_rise(arrived=arrived, now=arrived)
    now = arrived if rise is None else rise  # none where a float's step is longer than any wait
    assert not rank(arrived=arrived, now=now).not_overdue
    assert COORDINATOR.next_rise(arrived=arrived, now=now) is None
