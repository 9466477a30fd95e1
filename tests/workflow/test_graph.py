"""Execution graphs: what followed what, within bounds and tenants."""

import pytest

from gateway.domain.ids import TenantId
from gateway.workflow.agent_types import AgentType
from gateway.workflow.graph import END, OTHER, START, Graph, Graphs
from gateway.workflow.steps import tool_set

AGENT = AgentType(1, 2)


def lived(graph: Graph, *steps: str) -> Graph:
    before = None
    for name in steps:
        graph.learn(before, (name,))
        before = (name,)
    if before is not None:
        graph.ended(before)
    return graph


def test_what_is_likeliest_to_follow():
    graph = Graph(AGENT)
    assert graph.next(("read",)) == (("read",), 0.0)
    for last in ("edit", "edit", "edit", "test"):
        lived(graph, "read", last)
    step, share = graph.next(("read",))
    assert step == ("edit",) and share == pytest.approx(0.6)  # 3 of 4, and one for what was never seen
    assert graph.next(("edit",)) == (("edit",), 0.0)  # nothing but the end has followed
    shares = {(start, to): share for start, to, share, _ in graph.edges()}
    names = {graph.label(node): node for edge in shares for node in edge}
    assert names["START"] == START and names["END"] == END
    assert shares[START, names["read"]] == 1.0 and shares[names["read"], names["edit"]] == 0.75
    assert (graph.tasks, graph.steps) == (4, 8)


def test_an_end_is_taken_back():
    graph = lived(Graph(AGENT), "read")
    graph.was_no_end(("read",))
    assert graph.tasks == 0 and not any(to == END for _, to, _, _ in graph.edges())


def test_steps_are_bounded_and_the_rest_share_one_node():
    graph = Graph(AGENT)
    for number in range(200):
        lived(graph, "common", f"rare-{number}", "common")
    nodes = {node for start, to, _, _ in graph.edges() for node in (start, to)}
    assert len(nodes) <= 35 and OTHER in nodes
    assert graph.label(OTHER) == "other" and graph.step(OTHER) is None
    assert graph.next(("common",))[1] < 0.1


def test_old_steps_count_less():
    graph = Graph(AGENT)
    for _ in range(3000):
        graph.learn(("a",), ("b",))
    for _ in range(1500):
        graph.learn(("a",), ("c",))
    assert graph.next(("a",))[0] == ("c",)


def test_who_has_most_graphs_loses_its_own_first():
    graphs = Graphs(max_types=10)
    quiet = graphs.of(AgentType(1, 2, owner=TenantId("quiet")))
    for number in range(100):
        graphs.of(AgentType(number, 2, owner=TenantId("loud")))
    assert len(graphs) == 10 and graphs.of(AgentType(1, 2, owner=TenantId("quiet"))) is quiet
    assert graphs.of(AgentType(1, 2, owner=TenantId("loud"))) is not quiet


def test_tools_are_named_once_in_order_and_within_bounds():
    assert tool_set(["b", "a", "b"]) == ("a", "b")
    assert tool_set(["x" * 100]) == ("x" * 64,) and len(tool_set(map(str, range(99)))) == 16


def test_types_are_told_apart_by_prompt_client_place_and_owner():
    others = (AgentType(1, 3), AgentType(2, 2), AgentType(1, 2, True), AgentType(1, 2, False, TenantId("t")))
    assert len({(each.owner, each.key) for each in (AGENT, *others)}) == 5
    assert AGENT.family == AgentType(9, 2).family
    assert AGENT.family not in (AgentType(9, 2, True).family, others[-1].family)
