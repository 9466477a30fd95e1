"""Keys of what is learned from conversations.

Invariant: a type belongs to one owner, and so does its family.
"""

from typing import Final, NamedTuple

from gateway.domain.decision import Edge, SessionRef
from gateway.domain.ids import NOBODYS, TenantId
from gateway.domain.request import RequestFacts


class AgentKey(NamedTuple):
    owner: TenantId = NOBODYS
    """Its tenant, or the shared one."""
    agent_type: int = 0
    """Hash of the prompt's skeleton and the tools (`gateway/identity/agent_type.py`); 0 if unknown."""
    client: int = 0
    """Hash of its software's name."""
    is_child: bool = False
    """A sub-agent."""

    @property
    def family(self) -> tuple[TenantId, int, bool]:
        return self.owner, self.client, self.is_child


UNKNOWN_AGENT: Final = AgentKey()


def agent_key(ref: SessionRef, facts: RequestFacts, owner: TenantId) -> AgentKey:
    kind = facts.transcript.agent_type or facts.transcript.agent
    return AgentKey(owner, kind, facts.client, ref.edge is Edge.SPAWNED)


def kind_of(facts: RequestFacts) -> int:
    """The type without dates and the like, if known."""
    return facts.transcript.agent_type or facts.transcript.agent
