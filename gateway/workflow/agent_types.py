"""Agent types: sessions of one program, prompt and tools, and what is known of them.

Source: SAGA (§3.3): three tiers of what is known.

Symbols: *explicit hints* → `Tier.STATED`; *implicit traces* → `Tier.INFERRED`; *cold start*, 30 tasks →
`Tier.UNKNOWN`, `AgentTypesConfig.min_tasks`.

Deviations: what counts is evidence, so a type is known after `min_tasks` tasks, or after as many steps as
that many short tasks have. A type that is not known yet borrows from its family, which is all young types
that the same client software makes; it teaches its family until it is known, and no longer.

Invariants: at most `max_types` types are remembered, and as many families; the longest unseen is forgotten.
"""

import enum
from collections import OrderedDict
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.workflow.graph import KINDS, Graph, GraphConfig
from gateway.workflow.mixture import Mixture
from gateway.workflow.nodes import Nodes


class Tier(enum.Enum):
    STATED = "stated"
    """The client says what follows."""
    INFERRED = "inferred"
    UNKNOWN = "unknown"
    """Too little was seen; requests are taken one by one."""


class AgentTypesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_types: Annotated[int, Meta(ge=1)] = 512
    """Agent types remembered; beyond it the longest unseen are forgotten."""
    min_tasks: Annotated[int, Meta(ge=0)] = 30
    """Tasks that must have been seen before anything is predicted; or"""
    min_steps: Annotated[int, Meta(ge=0)] = 100
    """so many of their steps."""
    graph: GraphConfig = GraphConfig()


class AgentType(msgspec.Struct, frozen=True, gc=False):
    """By what a type is known."""

    kind: int
    """Hash of the prompt's skeleton and the tools (`gateway/wire/agent_skeleton.py`)."""
    client: int
    is_child: bool = False
    """It works for another conversation of its session."""

    @property
    def key(self) -> int:
        return hash((self.kind, self.client, self.is_child))

    @property
    def family(self) -> int:
        return hash((self.client, self.is_child))


class AgentTypes:
    def __init__(self, config: AgentTypesConfig) -> None:
        self._config = config
        self._mixture = Mixture(KINDS)
        self._types: OrderedDict[int, Graph] = OrderedDict()
        self._families: OrderedDict[int, Graph] = OrderedDict()

    def __len__(self) -> int:
        return len(self._types)

    def items(self) -> list[tuple[int, Graph]]:
        """Every type with its graph, the longest unseen first."""
        return list(self._types.items())

    def graph(self, agent: AgentType) -> Graph:
        """Its own graph; kept from being forgotten soon."""
        return self._keep(self._types, agent.key, self.family(agent).nodes)

    def family(self, agent: AgentType) -> Graph:
        """That of all young types of its client software; its nodes have the same numbers."""
        return self._keep(self._families, agent.family, None)

    def is_known(self, graph: Graph) -> bool:
        return graph.tasks >= self._config.min_tasks or graph.steps >= self._config.min_steps

    def _keep(self, among: OrderedDict[int, Graph], key: int, nodes: Nodes | None) -> Graph:
        graph = among.get(key)
        if graph is None:
            graph = among[key] = Graph(self._config.graph, self._mixture, nodes or Nodes())
            if len(among) > self._config.max_types:
                among.popitem(last=False)
        else:
            among.move_to_end(key)
        return graph


NO_TYPE: Final = AgentType(0, 0)
