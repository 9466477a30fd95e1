"""The table of a connection to a replica, and the diagram that is made from it."""

import itertools
from pathlib import Path

import pytest

from gateway.upstream.connection_states import (
    TRANSITIONS,
    ConnectionStateError,
    State,
    Step,
    advance,
    as_mermaid,
)

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/reference/upstream.md"


def test_every_pair_is_in_the_table_or_raises():
    for state, step in itertools.product(State, Step):
        if step in TRANSITIONS[state]:
            assert advance(state, step) is TRANSITIONS[state][step]
        else:
            with pytest.raises(ConnectionStateError, match=f"is {state.value} cannot {step.value}"):
                advance(state, step)


def test_every_state_can_be_reached_and_closed():
    def reachable(start):
        found, border = {start}, [start]
        while border:
            after = set(TRANSITIONS[border.pop()].values()) - found
            found |= after
            border += after
        return found

    assert reachable(State.NEW) == set(State)
    assert all(State.CLOSED in reachable(state) for state in State)


def test_the_diagram_in_the_documentation_is_this_table():
    assert f"```mermaid\n{as_mermaid()}```\n" in DOCUMENT.read_text(encoding="utf-8")
