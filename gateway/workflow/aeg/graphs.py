"""All agent types' graphs, the families that they back off to, and tiers of what is known.

Invariants: those of the package; a family is remembered exactly as long as one of its types is.
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
    """The client says what follows."""
    INFERRED = "inferred"
    UNKNOWN = "unknown"
    """Too little was seen; requests are taken one by one."""


class AegConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_types: Annotated[int, Meta(ge=1)] = 512
    """Agent types remembered. Beyond it the longest unseen are forgotten, of the tenant that has most."""
    max_tenants: Annotated[int, Meta(ge=1)] = 256
    """Tenants of which something learned is remembered; beyond it the longest unseen are forgotten."""
    min_tasks: Annotated[int, Meta(ge=0)] = 30
    """Tasks that must have been seen before anything is acted on; or"""
    min_steps: Annotated[int, Meta(ge=0)] = 100
    """so many of their steps."""


class Graphs:
    def __init__(self, config: AegConfig) -> None:
        self._config = config
        self._types: TenantLru[TenantId, AgentKey, Graph] = TenantLru(config.max_types)
        self._families: WeakValueDictionary[tuple[TenantId, int, bool], Family] = WeakValueDictionary()
        """Each of its types keeps one alive."""
        self._nothing = Graph(AgentKey(NOBODYS), Family())
        self.shared_changes = 0
        """How often what conversations of some type share has changed, for those who keep sums of it."""

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
