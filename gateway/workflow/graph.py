"""The execution graph of an agent type: how often which step followed which, for people and records.

Source: SAGA (arXiv 2605.00528), §3.2, agent execution graphs.

Symbols: V → the steps, and `START`, `END`, `OTHER`; E, P → `Graph.edges`.

Deviations: the next step hangs on the last one alone. What is acted on, whether anything follows and when, is
not read from here (`return_model.py`).

Invariants: pure; nothing that one owner teaches is read for another one; at most `max_types` graphs are
remembered, whoever has most of them loses its longest unseen first; a graph has at most `_MAX_NODES` steps,
all others share `OTHER`.
"""

from collections.abc import Iterator
from typing import Final

from gateway.domain.ids import TenantId
from gateway.domain.tenant_lru import TenantLru
from gateway.workflow.agent_types import AgentType
from gateway.workflow.steps import ToolSet

START: Final = -1
END: Final = 0
OTHER: Final = 1
_LABELS: Final = {START: "START", END: "END", OTHER: "other"}
_MAX_NODES: Final = 32
_FADES_AT: Final = 1000.0
"""Counts behind one step are halved then, so that old ones count less."""


class Graph:
    def __init__(self, agent: AgentType) -> None:
        self.agent = agent
        self.tasks = 0
        """Conversations that came to their end."""
        self.steps = 0
        self._numbers: dict[ToolSet, int] = {}
        self._steps: dict[int, ToolSet] = {}
        self._after: dict[int, dict[int, float]] = {}

    def learn(self, before: ToolSet | None, step: ToolSet) -> None:
        """`before`: None for a conversation's first step."""
        self.steps += 1
        if step not in self._numbers and len(self._numbers) < _MAX_NODES:
            number = self._numbers[step] = OTHER + 1 + len(self._numbers)
            self._steps[number] = step
        self._count(self._number(before), self._number(step))

    def ended(self, step: ToolSet) -> None:
        self.tasks += 1
        self._count(self._number(step), END)

    def was_no_end(self, step: ToolSet) -> None:
        self.tasks -= 1
        after = self._after.get(self._number(step), {})
        after[END] = max(0.0, after.get(END, 0.0) - 1.0)

    def next(self, step: ToolSet) -> tuple[ToolSet, float]:
        """What the next step asks for, if there is one, and how likely; unknown: the same again."""
        after = self._after.get(self._number(step), {})
        counts = {self._steps[node]: count for node, count in after.items() if node in self._steps}
        if not counts:
            return step, 0.0
        likeliest = max(counts, key=counts.__getitem__)
        return likeliest, counts[likeliest] / (1.0 + sum(after.values()) - after.get(END, 0.0))

    def edges(self) -> list[tuple[int, int, float, float]]:
        return [
            (start, to, count / total, count)
            for start, after in self._after.items()
            if (total := sum(after.values())) > 0.0
            for to, count in after.items()
            if count > 0.0
        ]

    def step(self, node: int) -> ToolSet | None:
        return self._steps.get(node)

    def label(self, node: int) -> str:
        return _LABELS.get(node) or " + ".join(self._steps[node]) or "answer"

    def _number(self, step: ToolSet | None) -> int:
        return START if step is None else self._numbers.get(step, OTHER)

    def _count(self, start: int, to: int) -> None:
        after = self._after.setdefault(start, {})
        after[to] = after.get(to, 0.0) + 1.0
        if after[to] >= _FADES_AT:
            self._after[start] = {node: count / 2 for node, count in after.items()}


class Graphs:
    def __init__(self, max_types: int) -> None:
        self._graphs: TenantLru[TenantId, int, Graph] = TenantLru(max_types)

    def __len__(self) -> int:
        return len(self._graphs)

    def __iter__(self) -> Iterator[Graph]:
        return (graph for _, _, graph in self._graphs.items())

    def of(self, agent: AgentType) -> Graph:
        key = agent.key
        graph = self._graphs.get(agent.owner, key)
        if graph is None:
            graph = Graph(agent)
            self._graphs.put(agent.owner, key, graph)
        return graph
