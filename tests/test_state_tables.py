"""The tables of the lives that something has, and the diagrams that are made from them.

That a step which a table lacks raises is tested once for all tables: tests/domain/test_state_table.py.
"""

from types import ModuleType
from typing import Any

import pytest

from gateway.core import lifecycle
from gateway.server import connection_states as client_connection
from gateway.upstream import connection_states as replica_connection
from tests.project.layout import ROOT

TABLES = {"lifecycle": lifecycle, "client-connections": client_connection, "upstream": replica_connection}
"""By the page that draws it."""
ENDS = {
    "lifecycle": {state.value for state in lifecycle.FINAL_STATES},
    "client-connections": {"closed"},
    "upstream": {"closed"},
}

each_table = pytest.mark.parametrize(("page", "table"), TABLES.items(), ids=TABLES)


def reachable(table: ModuleType, start: Any) -> set[Any]:
    found, border = {start}, [start]
    while border:
        after = set(table.TRANSITIONS[border.pop()].values()) - found
        found |= after
        border += after
    return found


@each_table
def test_every_state_can_be_reached_and_can_end(page: str, table: ModuleType) -> None:
    first = next(iter(table.TRANSITIONS))
    assert set(table.TRANSITIONS) == set(table.State) == reachable(table, first)
    ends = {state for state in table.State if reachable(table, state) == {state}}
    assert {state.value for state in ends} == ENDS[page]
    assert all(reachable(table, state) & ends for state in table.State)


@each_table
def test_the_diagram_in_the_documentation_is_this_table(page: str, table: ModuleType) -> None:
    text = (ROOT / f"docs/reference/{page}.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{table.as_mermaid()}```\n" in text


def test_these_states_of_a_request_are_final() -> None:
    assert {state.value for state in lifecycle.FINAL_STATES} == {"finished", "cut", "left", "refused"}


def test_a_connection_can_be_lost_in_every_state() -> None:
    for state in set(client_connection.State) - {client_connection.State.CLOSED}:
        assert client_connection.advance(state, client_connection.Step.LOSE).value == "closed"
