import msgspec

from gateway.dashboard.graphs import view_graphs
from gateway.domain.request import Manner
from gateway.workflow.agent_types import AgentType, AgentTypes, AgentTypesConfig
from gateway.workflow.nodes import END
from gateway.workflow.walk import Walk


def live_through(types: AgentTypes, agent: AgentType, *steps: str) -> None:
    """A conversation of that type that takes these steps, two seconds apart, and ends."""
    graph, walk = types.graph(agent), Walk()
    for name in steps:
        node = graph.nodes.number((name,))
        graph.learn(graph.forecast(walk), node)
        graph.saw_gap(node, 2.0)
        walk.step(node, Manner(), is_asked=False)
    graph.suppose(graph.forecast(walk), END)
    graph.saw_end(walk.steps)


def test_nobody_who_was_not_seen_is_shown():
    types = AgentTypes(AgentTypesConfig())
    types.graph(AgentType(1, 1))
    assert view_graphs(types) == []


def test_steps_and_what_follows_them():
    types = AgentTypes(AgentTypesConfig(min_tasks=4))
    for last in ("edit", "edit", "edit", "bash"):
        live_through(types, AgentType(1, 1), "read", last)
    (view,) = view_graphs(types)
    assert (view.tasks, view.steps, view.is_known) == (4, 8, True)
    labels = {node.id: node.label for node in view.nodes}
    assert sorted(labels.values()) == ["END", "START", "bash", "edit", "read"]
    shares = {(labels[edge.from_], labels[edge.to]): round(edge.probability, 2) for edge in view.edges}
    assert shares == {
        ("START", "read"): 1.0,
        ("read", "edit"): 0.75,
        ("read", "bash"): 0.25,
        ("edit", "END"): 1.0,
        ("bash", "END"): 1.0,
    }
    read = next(node for node in view.nodes if node.label == "read")
    assert read.visits == 4.0
    assert read.pause_p50_s is not None
    assert 1.5 < read.pause_p50_s < 2.5
    assert b'"from":-1' in msgspec.json.encode(view)


def test_the_newest_types_come_first_and_not_all_of_them():
    types = AgentTypes(AgentTypesConfig(min_tasks=30))
    agents = [AgentType(number, 1) for number in range(20)]
    for agent in agents:
        live_through(types, agent, "bash")
    views = view_graphs(types)
    assert [view.id for view in views] == [f"{agent.key & 0xFFFFFFFF:08x}" for agent in agents[:-13:-1]]
    assert not any(view.is_known for view in views)


def test_a_graph_of_many_steps_is_told_by_its_commonest_edges():
    types = AgentTypes(AgentTypesConfig())
    for number in range(200):
        live_through(types, AgentType(1, 1), "common", f"rare-{number}", "common")
    (view,) = view_graphs(types)
    assert len(view.edges) <= 120
    labels = {node.id: node.label for node in view.nodes}
    commonest = {(labels[edge.from_], labels[edge.to]) for edge in view.edges[:2]}
    assert commonest == {("START", "common"), ("common", "END")}
