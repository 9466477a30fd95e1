"""Learned execution graphs as plain values, for people: the types that were seen last, their likeliest edges.

Invariants: bounded in size, and so in time: some milliseconds at most, on the event loop, for who looks.
"""

from typing import Final

import msgspec

from gateway.domain.agent_key import AgentKey
from gateway.wire.hashing import hash_text
from gateway.workflow.aeg.graph import END, START, Graph
from gateway.workflow.aeg.graphs import Graphs, Tier

_MAX_TYPES: Final = 12
_MAX_EDGES: Final = 120
# Edges below this probability are left out.
_LEAST: Final = 0.02


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    label: str
    """The tools that the step calls, or `answer`, `other`, `START`, `END`."""
    visits: float
    """Old ones count less."""
    pause_p50_s: float | None
    """From the step's answer to the request that follows it."""
    pause_p95_s: float | None


class EdgeView(msgspec.Struct, frozen=True, kw_only=True):
    from_: int = msgspec.field(name="from")
    to: int
    probability: float
    count: float
    """Old ones count less."""


class GraphView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tasks: int
    steps: int
    is_known: bool
    """Enough was seen of the type to act on what is expected."""
    nodes: list[NodeView]
    edges: list[EdgeView]


def view_graphs(graphs: Graphs) -> list[GraphView]:
    newest = [graph for graph in reversed(list(graphs)) if graph.lifetimes.turns][:_MAX_TYPES]
    return [_view(graph, is_known=graphs.tier(graph) is Tier.INFERRED) for graph in newest]


def name_of(agent: AgentKey) -> str:
    return f"{hash_text(f'{hash(agent[1:]):x} {agent.owner}') & 0xFFFFFFFF:08x}"


def _view(graph: Graph, *, is_known: bool) -> GraphView:
    visits: dict[int, float] = {}
    edges = []
    for start, to, share, count in graph.edges():
        visits[to] = visits.get(to, 0.0) + count
        if start == START:
            visits[START] = visits.get(START, 0.0) + count
        if share >= _LEAST and (start, to) != (START, END):
            edges.append(EdgeView(from_=start, to=to, probability=round(share, 4), count=round(count, 1)))
    edges.sort(key=lambda edge: -edge.count)
    del edges[_MAX_EDGES:]
    shown = sorted({node for edge in edges for node in (edge.from_, edge.to)})
    return GraphView(
        id=name_of(graph.agent),
        tasks=graph.tasks,
        steps=graph.lifetimes.turns,
        is_known=is_known,
        nodes=[_node(graph, node, visits.get(node, 0.0)) for node in shown],
        edges=edges,
    )


def _node(graph: Graph, node: int, visits: float) -> NodeView:
    found = graph.numbered.get(node)
    pauses = found.pauses if found is not None else None
    return NodeView(
        id=node,
        label=graph.label(node),
        visits=round(visits, 1),
        pause_p50_s=pauses.quantile(0.5) if pauses is not None else None,
        pause_p95_s=pauses.quantile(0.95) if pauses is not None else None,
    )
