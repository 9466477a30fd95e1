"""The table of a request's life, and its drawing."""

import pytest

from gateway.core.lifecycle import FINAL_STATES, TRANSITIONS, LifecycleError, State, Step, advance
from tests.project.layout import ROOT


def reachable(start: State) -> set[State]:
    found, border = {start}, [start]
    while border:
        after = set(TRANSITIONS[border.pop()].values()) - found
        found |= after
        border += after
    return found


def test_every_state_can_be_reached_and_can_end():
    assert set(TRANSITIONS) == set(State) == reachable(State.UNDECIDED)
    assert {state.value for state in FINAL_STATES} == {"finished", "cut", "left", "refused"}
    assert all(reachable(state) & FINAL_STATES for state in State)


def test_a_step_that_the_table_lacks_raises():
    assert advance(State.UNDECIDED, Step.WAIT) is State.WAITING
    with pytest.raises(LifecycleError, match="a request that is cut cannot fail"):
        advance(State.CUT, Step.FAIL)


def test_the_diagram_in_the_documentation_is_this_table():
    lines = ["stateDiagram-v2", "    [*] --> undecided"]
    for state, steps in TRANSITIONS.items():
        lines += [f"    {state.value} --> {after.value}: {step.value}" for step, after in steps.items()]
        lines += [] if steps else [f"    {state.value} --> [*]"]
    page = (ROOT / "docs/reference/lifecycle.md").read_text(encoding="utf-8")
    assert "\n".join(["```mermaid", *lines, "```"]) in page
