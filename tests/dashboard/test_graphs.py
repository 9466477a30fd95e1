import msgspec

from gateway.dashboard.graphs import name_of, view_graphs
from gateway.domain.ids import TenantId
from gateway.workflow.agent_types import AgentType
from gateway.workflow.conversations import Conversations, ConversationsConfig
from gateway.workflow.return_model import ReturnModelConfig
from gateway.workflow.steps import Step


def conversations(**types: int) -> Conversations:
    return Conversations(ConversationsConfig(types=ReturnModelConfig(**types)))


def live_through(known: Conversations, agent: AgentType, *steps: str) -> None:
    """A conversation of that type that takes these steps, two seconds apart, and ends."""
    graph, before = known.graphs.of(agent), None
    for name in steps:
        graph.learn(before, (name,))
        before = (name,)
        known.returns.went_on(agent, Step(before), 2.0)
    if before is not None:
        known.returns.saw_task(agent)
        graph.ended(before)


def test_nobody_who_was_not_seen_is_shown():
    known = conversations()
    known.graphs.of(AgentType(1, 1))
    assert view_graphs(known) == []


def test_steps_and_what_follows_them():
    known = conversations(min_tasks=4)
    for last in ("edit", "edit", "edit", "bash"):
        live_through(known, AgentType(1, 1), "read", last)
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
    known = conversations(min_tasks=30)
    agents = [AgentType(number, 1) for number in range(20)]
    for agent in agents:
        live_through(known, agent, "bash")
    views = view_graphs(known)
    assert [view.id for view in views] == [name_of(agent) for agent in agents[:-13:-1]]
    assert not any(view.is_known for view in views)


def test_a_graph_of_many_steps_is_told_by_its_commonest_edges():
    known = conversations()
    for number in range(200):
        live_through(known, AgentType(1, 1), "common", f"rare-{number}", "common")
    (view,) = view_graphs(known)
    assert len(view.edges) <= 120
    labels = {node.id: node.label for node in view.nodes}
    commonest = {(labels[edge.from_], labels[edge.to]) for edge in view.edges[:2]}
    assert commonest == {("START", "common"), ("common", "END")}


def test_types_have_the_same_name_in_every_process():
    named = {tenant: name_of(AgentType(2**64 - 1, 2, True, TenantId(tenant))) for tenant in ("acme", "beta")}
    assert named == {"acme": "40ac92a4", "beta": "54ed8b93"}
