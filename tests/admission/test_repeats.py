"""Cycles of steps, against a plain definition."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.repeats import MAX_CYCLE, Cycles


def by_hand(steps: list[int]) -> int:
    """How often the newest cycle of any length came in a row."""
    most = 1
    for length in range(1, MAX_CYCLE + 1):
        cycle, count = steps[-length:], 0
        while len(cycle) == length and steps[len(steps) - length * (count + 1) :][:length] == cycle:
            count += 1
            if length * (count + 1) > len(steps):
                break
        most = max(most, count)
    return most


@given(st.lists(st.integers(1, 3), min_size=1, max_size=40))
def test_the_newest_cycle_is_counted(steps):
    cycles = Cycles()
    for step in steps:
        cycles.saw(step)
    assert cycles.count == by_hand(steps)
