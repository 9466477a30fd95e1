"""Agent types: sessions of one program, prompt and tools, and what is known of them.

Source: SAGA (§3.3): three tiers of what is known.

Symbols: *explicit hints* → `Tier.STATED`; *implicit traces* → `Tier.INFERRED`; *cold start*, 30 tasks →
`Tier.UNKNOWN`, `AgentTypesConfig.min_tasks`.

Deviations: what counts is evidence, so a type is known after `min_tasks` tasks, or after as many steps as
that many short tasks have. A type counts as known with its family, too, which is all types that the same
client software makes, since a young one leans on what its relatives do (`kin.py`).

Invariants: at most `max_types` types are remembered, and as many families; the longest unseen is forgotten.
"""

import enum
from collections import OrderedDict
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from gateway.workflow.graph import Graph, GraphConfig
from gateway.workflow.kin import Kin, World
from gateway.workflow.mixture import Mixture
from gateway.workflow.walk import KINDS

T = TypeVar("T")


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
        self._families: OrderedDict[int, Kin] = OrderedDict()
        self._world = World(half_life=config.graph.half_life_steps)

    def __len__(self) -> int:
        return len(self._types)

    def items(self) -> list[tuple[int, Graph]]:
        """Every type with its graph, the longest unseen first."""
        return list(self._types.items())

    def graph(self, agent: AgentType) -> Graph:
        """Its own graph; kept from being forgotten soon."""
        kin = self._family(agent)
        graph = self._types.pop(agent.key, None) or Graph(self._config.graph, self._mixture, kin)
        _put(self._types, agent.key, graph, self._config.max_types)
        return graph

    def _family(self, agent: AgentType) -> Kin:
        kin = self._families.pop(agent.family, None)
        if kin is None:
            graph = self._config.graph
            kin = Kin(self._world, max_contexts=graph.max_contexts, half_life=graph.half_life_steps)
        _put(self._families, agent.family, kin, self._config.max_types)
        return kin

    def is_known(self, graph: Graph) -> bool:
        """Enough was seen of it, or of its family."""
        tasks, steps = self._config.min_tasks, self._config.min_steps
        return any(seen.tasks >= tasks or seen.steps >= steps for seen in (graph, graph.kin))


def _put(among: OrderedDict[int, T], key: int, known: T, most: int) -> None:
    among[key] = known
    if len(among) > most:
        among.popitem(last=False)


NO_TYPE: Final = AgentType(0, 0)
