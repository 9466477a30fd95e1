"""The table of a client connection's life, and the diagram that is made from it."""

import itertools
from pathlib import Path

import pytest

from gateway.server.connection_states import (
    TRANSITIONS,
    ConnectionStateError,
    State,
    Step,
    advance,
    as_mermaid,
)

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/reference/client-connections.md"


def test_every_pair_is_in_the_table_or_raises():
    for state, step in itertools.product(State, Step):
        if step in TRANSITIONS[state]:
            assert advance(state, step) is TRANSITIONS[state][step]
        else:
            with pytest.raises(ConnectionStateError, match=f"is {state.value} cannot {step.value}"):
                advance(state, step)


def test_every_state_can_be_reached_and_can_be_lost():
    found, border = {State.IDLE}, [State.IDLE]
    while border:
        after = set(TRANSITIONS[border.pop()].values()) - found
        found |= after
        border += after
    assert found == set(State)
    for state in set(State) - {State.CLOSED}:
        assert advance(state, Step.LOSE) is State.CLOSED
    assert set(TRANSITIONS[State.CLOSED].values()) == {State.CLOSED}


def test_the_diagram_in_the_documentation_is_this_table():
    assert f"```mermaid\n{as_mermaid()}```\n" in DOCUMENT.read_text(encoding="utf-8")
