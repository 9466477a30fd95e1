"""Agent types: sessions of one program, prompt and tools, and what is known of them.

Source: SAGA (§3.3): three tiers of what is known.

Symbols: *explicit hints* → `Tier.STATED`; *implicit traces* → `Tier.INFERRED`; *cold start*, 30 tasks →
`Tier.UNKNOWN`, `AgentTypesConfig.min_tasks`.

Deviations: what counts is evidence, so a type is known after `min_tasks` tasks, or after as many steps as
that many short tasks have. A type counts as known with its family, too, which is all types that the same
client software makes, since a young one leans on what its relatives do (`kin.py`).

Invariants: a type belongs to one tenant: it leans on nothing that another tenant taught; at most `max_types`
types are remembered, and as many families, and whoever has most of them loses its longest unseen first.
"""

import enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.ids import NOBODYS, TenantId
from gateway.domain.tenant_lru import TenantLru
from gateway.workflow.graph import Graph, GraphConfig
from gateway.workflow.kin import Kin, World
from gateway.workflow.mixture import Mixture
from gateway.workflow.walk import KINDS


class Tier(enum.Enum):
    STATED = "stated"
    """The client says what follows."""
    INFERRED = "inferred"
    UNKNOWN = "unknown"
    """Too little was seen; requests are taken one by one."""


_CONTEXTS_PER_TYPE: Final = 512
"""A graph of fewer contexts counts as one type; each further 512 contexts count as one more."""


class AgentTypesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_types: Annotated[int, Meta(ge=1)] = 512
    """Agent types remembered. A type counts once for each 512 contexts of its graph. Beyond it the longest
    unseen are forgotten, of the tenant that has most."""
    max_tenants: Annotated[int, Meta(ge=1)] = 256
    """Tenants of which something learned is remembered; beyond it the longest unseen are forgotten."""
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
    owner: TenantId = NOBODYS
    """The tenant whose sessions teach it."""

    @property
    def key(self) -> int:
        return hash((self.kind, self.client, self.is_child, self.owner))

    @property
    def family(self) -> int:
        return hash((self.client, self.is_child, self.owner))


class _Common:
    """What all types of one tenant share."""

    __slots__ = ("mixture", "world")

    def __init__(self, config: GraphConfig) -> None:
        self.mixture = Mixture(KINDS)
        self.world = World(half_life=config.half_life_steps)


class AgentTypes:
    def __init__(self, config: AgentTypesConfig) -> None:
        self._config = config
        self._types: TenantLru[TenantId, int, Graph] = TenantLru(config.max_types)
        self._families: TenantLru[TenantId, int, Kin] = TenantLru(config.max_types)
        self._common: TenantLru[TenantId, None, _Common] = TenantLru(config.max_tenants)

    def __len__(self) -> int:
        return len(self._types)

    def items(self) -> list[tuple[int, Graph]]:
        """Every type with its graph: tenant by tenant, of each the longest unseen first."""
        return [(key, graph) for _, key, graph in self._types.items()]

    def graph(self, agent: AgentType) -> Graph:
        """Its own graph; kept from being forgotten soon."""
        common, kin = self._common_of(agent.owner), self._family(agent)
        graph = self._types.get(agent.owner, agent.key)
        if graph is None:
            graph = Graph(self._config.graph, common.mixture, kin)
            self._types.put(agent.owner, agent.key, graph)
        elif (weight := min(1 + graph.contexts // _CONTEXTS_PER_TYPE, self._config.max_types)) > graph.weight:
            graph.weight = weight
            self._types.put(agent.owner, agent.key, graph, weight)
        return graph

    def _family(self, agent: AgentType) -> Kin:
        kin = self._families.get(agent.owner, agent.family)
        if kin is None:
            graph, world = self._config.graph, self._common_of(agent.owner).world
            kin = Kin(world, max_contexts=graph.max_contexts, half_life=graph.half_life_steps)
            self._families.put(agent.owner, agent.family, kin)
        return kin

    def _common_of(self, owner: TenantId) -> _Common:
        common = self._common.get(owner, None)
        if common is None:
            common = _Common(self._config.graph)
            self._common.put(owner, None, common)
        return common

    def is_known(self, graph: Graph) -> bool:
        """Enough was seen of it, or of its family."""
        tasks, steps = self._config.min_tasks, self._config.min_steps
        return any(seen.tasks >= tasks or seen.steps >= steps for seen in (graph, graph.kin))


NO_TYPE: Final = AgentType(0, 0)
