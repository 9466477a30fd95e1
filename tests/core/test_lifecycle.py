"""The table of a request's life, and the diagram that is made from it."""

import itertools
from pathlib import Path

import pytest

from gateway.core.lifecycle import (
    FINAL_STATES,
    TRANSITIONS,
    LifecycleError,
    State,
    Step,
    advance,
    as_mermaid,
)

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/reference/lifecycle.md"


def as_document() -> str:
    return (
        "# The life of a request\n\n"
        "Made from the table in `gateway/core/lifecycle.py`, which also says what the states mean. "
        "A test compares the two.\n\n"
        f"```mermaid\n{as_mermaid()}```\n"
    )


def test_every_pair_is_in_the_table_or_raises():
    for state, step in itertools.product(State, Step):
        if step in TRANSITIONS[state]:
            assert advance(state, step) is TRANSITIONS[state][step]
        else:
            with pytest.raises(LifecycleError, match=f"is {state.value} cannot {step.value}"):
                advance(state, step)


def test_the_final_states_are_those_that_nothing_leaves():
    assert {State.FINISHED, State.CUT, State.LEFT, State.REFUSED} == FINAL_STATES


def test_every_state_can_be_reached_and_can_end():
    def reachable(start):
        found, border = {start}, [start]
        while border:
            after = set(TRANSITIONS[border.pop()].values()) - found
            found |= after
            border += after
        return found

    assert reachable(State.UNDECIDED) == set(State)
    assert all(reachable(state) & FINAL_STATES for state in State)


def test_the_diagram_in_the_documentation_is_this_table():
    assert DOCUMENT.read_text(encoding="utf-8") == as_document()
