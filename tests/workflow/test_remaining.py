"""What is left of a task."""

import pytest

from gateway.workflow.remaining import Remaining


def test_tasks_that_came_as_far_say_what_is_left():
    known = Remaining()
    assert known.steps(1, ends=0.0) > 0
    for _ in range(200):
        known.saw_end(10)
    assert known.steps(1, ends=0.0) == pytest.approx(9.0, abs=0.2)
    assert known.steps(9, ends=0.0) == pytest.approx(1.0, abs=0.2)
    assert known.steps(9, ends=1.0) == 0.0 and known.steps(500, ends=0.5) >= 0.5


def test_the_work_of_a_step():
    known = Remaining()
    for _ in range(300):
        known.saw_step(1000.0, 50.0)
    known.saw_step(-5.0, 50.0)
    assert known.new_tokens == pytest.approx(1000, rel=0.05) and known.output_tokens == pytest.approx(
        50, rel=0.05
    )
