"""MCP sessions, and the agents' sessions that use each.

An agent uses an MCP session once one of its calls was joined to a call of that agent's model.

Invariants: what is known of a session is its tenant's alone; at most `_MAX_SESSIONS` are remembered, with
`_MAX_AGENTS` agents each.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from gateway.domain.ids import SessionId, TenantId
from gateway.domain.tenant_lru import TenantLru

_MAX_SESSIONS: Final = 4096
_MAX_AGENTS: Final = 64


class McpSession(NamedTuple):
    server: str
    tenant: TenantId
    id: str
    """That the server gave; empty if it gave none."""


class McpSessions:
    def __init__(self) -> None:
        # The newest last.
        self._agents: TenantLru[TenantId, McpSession, OrderedDict[SessionId, None]] = TenantLru(_MAX_SESSIONS)

    def agents_of(self, session: McpSession) -> OrderedDict[SessionId, None]:
        return self._agents.get(session.tenant, session) or OrderedDict()

    def used_by(self, session: McpSession, agent: SessionId) -> None:
        if not session.id:
            return
        agents = self.agents_of(session)
        agents[agent] = None
        agents.move_to_end(agent)
        if len(agents) > _MAX_AGENTS:
            agents.popitem(last=False)
        self._agents.put(session.tenant, session, agents)

    def forget(self, session: McpSession) -> None:
        self._agents.pop(session.tenant, session)
