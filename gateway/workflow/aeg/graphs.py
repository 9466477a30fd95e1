"""All agent types' graphs, their families, and tiers of evidence.

Invariants: a family is kept exactly as long as one of its types.
"""

import enum
from collections.abc import Iterator
from typing import Annotated
from weakref import WeakValueDictionary

import msgspec
from msgspec import Meta

from gateway.domain.agent_key import AgentKey
from gateway.domain.ids import NOBODYS, TenantId
from gateway.domain.tenant_lru import TenantLru
from gateway.workflow.aeg.graph import Family, Graph


class Tier(enum.Enum):
    """SAGA (§3.3)."""

    STATED = "stated"
    """By the client."""
    INFERRED = "inferred"
    UNKNOWN = "unknown"


class AegConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_types: Annotated[int, Meta(ge=1)] = 512
    """Agent types kept; the tenant with the most loses its longest unseen first."""
    max_tenants: Annotated[int, Meta(ge=1)] = 256
    """Tenants with learned state; the longest unseen is dropped first."""
    min_tasks: Annotated[int, Meta(ge=0)] = 30
    """Finished tasks before an estimate counts, or `min_steps` steps."""
    min_steps: Annotated[int, Meta(ge=0)] = 100
    """Steps before an estimate counts, or `min_tasks` tasks."""


class Graphs:
    def __init__(self, config: AegConfig) -> None:
        self._config = config
        self._types: TenantLru[TenantId, AgentKey, Graph] = TenantLru(config.max_types)
        # Kept alive by their types.
        self._families: WeakValueDictionary[tuple[TenantId, int, bool], Family] = WeakValueDictionary()
        self._nothing = Graph(AgentKey(NOBODYS), Family())
        # Changes of common prefixes, for sums over them.
        self.shared_changes = 0

    def __len__(self) -> int:
        return len(self._types)

    def __iter__(self) -> Iterator[Graph]:
        return (graph for _, _, graph in self._types.items())

    def of(self, agent: AgentKey) -> Graph:
        found = self._types.get(agent.owner, agent)
        if found is None:
            family = self._families.get(agent.family)
            if family is None:
                family = self._families[agent.family] = Family()
            found = Graph(agent, family)
            self._types.put(agent.owner, agent, found)
        return found

    def known(self, agent: AgentKey) -> Graph:
        return self._types.get(agent.owner, agent) or self._nothing

    def tier(self, graph: Graph) -> Tier:
        config = self._config
        for level in (graph, graph.family):
            if level.tasks >= config.min_tasks or level.steps >= config.min_steps:
                return Tier.INFERRED
        return Tier.UNKNOWN
