"""A table of states says what may follow, and draws itself."""

import pytest

from gateway.domain.state_table import StateError, StateTable
from gateway.domain.words import Word


class State(Word):
    OPEN = "open"
    SHUT = "shut"
    GONE = "gone"


class Step(Word):
    PUSH = "push"
    BURN = "burn"


class DoorError(StateError):
    pass


TRANSITIONS = {
    State.OPEN: {Step.PUSH: State.SHUT, Step.BURN: State.GONE},
    State.SHUT: {Step.PUSH: State.OPEN},
    State.GONE: {Step.BURN: State.GONE},
}


def test_what_is_in_the_table_follows_and_all_else_raises():
    table = StateTable("a door", TRANSITIONS, DoorError)
    assert table.advance(State.OPEN, Step.PUSH) is State.SHUT
    with pytest.raises(DoorError, match="a door that is shut cannot burn"):
        table.advance(State.SHUT, Step.BURN)
    with pytest.raises(StateError):
        StateTable("a door", TRANSITIONS).advance(State.GONE, Step.PUSH)


def test_the_drawing_begins_with_the_first_state_and_ends_where_nothing_leads_on():
    assert StateTable("a door", TRANSITIONS).as_mermaid() == (
        "stateDiagram-v2\n"
        "    [*] --> open\n"
        "    open --> shut: push\n"
        "    open --> gone: burn\n"
        "    shut --> open: push\n"
        "    gone --> gone: burn\n"
        "    gone --> [*]\n"
    )
