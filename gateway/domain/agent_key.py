"""Under which it is kept what a conversation teaches.

Invariant: a type belongs to one owner, and so does its family.
"""

from typing import Final, NamedTuple

from gateway.domain.decision import Edge, SessionRef
from gateway.domain.ids import NOBODYS, TenantId
from gateway.domain.request import RequestFacts


class AgentKey(NamedTuple):
    owner: TenantId = NOBODYS
    """Its tenant; `NOBODYS` if all tenants share what they teach."""
    agent_type: int = 0
    """Hash of the prompt's skeleton and the tools (`gateway/identity/agent_type.py`); 0 if not known."""
    client: int = 0
    """Hash of its software's name."""
    is_child: bool = False
    """It works for another conversation of its session."""

    @property
    def family(self) -> tuple[TenantId, int, bool]:
        return self.owner, self.client, self.is_child


UNKNOWN_AGENT: Final = AgentKey()


def agent_key(ref: SessionRef, facts: RequestFacts, owner: TenantId) -> AgentKey:
    return AgentKey(owner, kind_of(facts), facts.client, ref.edge is Edge.SPAWNED)


def kind_of(facts: RequestFacts) -> int:
    """A date in a prompt makes no other kind."""
    return facts.transcript.agent_type or facts.transcript.agent
