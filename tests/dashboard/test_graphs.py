import msgspec

from gateway.dashboard.graphs import name_of, view_graphs
from gateway.domain.agent_key import AgentKey
from gateway.domain.ids import NOBODYS, TenantId
from gateway.workflow.aeg.graph import Step
from gateway.workflow.aeg.graphs import AegConfig, Graphs


def model(**types: int) -> Graphs:
    return Graphs(AegConfig(**types))


def of(kind: int) -> AgentKey:
    return AgentKey(NOBODYS, kind, 1)


def live_through(known: Graphs, agent: AgentKey, *steps: str) -> None:
    """A conversation of that type that takes these steps, two seconds apart, and ends."""
    graph, before = known.of(agent), None
    for number, name in enumerate(steps, 1):
        graph.saw_step(before, (name,))
        graph.saw_turn(number, tokens=1.0, grown=None)
        before = (name,)
        graph.went_on(Step(before), 2.0)
    graph.ended(Step(before or ()), len(steps))
    graph.count(tasks=1)


def test_nobody_who_was_not_seen_is_shown():
    known = model()
    known.of(of(1))
    assert view_graphs(known) == []


def test_steps_and_what_follows_them():
    known = model(min_tasks=4)
    for last in ("edit", "edit", "edit", "bash"):
        live_through(known, of(1), "read", last)
    (view,) = view_graphs(known)
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
    known = model(min_tasks=30)
    agents = [of(number) for number in range(20)]
    for agent in agents:
        live_through(known, agent, "bash")
    views = view_graphs(known)
    assert [view.id for view in views] == [name_of(agent) for agent in agents[:-13:-1]]
    assert not any(view.is_known for view in views)


def test_a_graph_of_many_steps_is_told_by_its_commonest_edges():
    known = model()
    for number in range(200):
        live_through(known, of(1), "common", f"rare-{number}", "common")
    (view,) = view_graphs(known)
    assert len(view.edges) <= 120
    labels = {node.id: node.label for node in view.nodes}
    commonest = {(labels[edge.from_], labels[edge.to]) for edge in view.edges[:2]}
    assert commonest == {("START", "common"), ("common", "END")}


def test_types_have_the_same_name_in_every_process():
    named = {tenant: name_of(AgentKey(TenantId(tenant), 2**64 - 1, 2, True)) for tenant in ("acme", "beta")}
    assert named == {"acme": "40ac92a4", "beta": "54ed8b93"}
