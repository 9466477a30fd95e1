"""MCP sessions, and the agents' sessions that use each.

An agent uses an MCP session once one of its calls was joined to a call of that agent's model.

Invariants: what is known of a session is its tenant's alone; at most `_MAX_SESSIONS` are remembered, with
`_MAX_AGENTS` agents each.
"""

from collections import OrderedDict
from typing import Final

from gateway.domain.ids import SessionId, TenantId
from gateway.domain.tenant_lru import TenantLru

_MAX_SESSIONS: Final = 4096
_MAX_AGENTS: Final = 64

_Key = tuple[str, str]
"""Server, and the id that it gave."""


class McpSessions:
    def __init__(self) -> None:
        self._agents: TenantLru[TenantId, _Key, OrderedDict[SessionId, None]] = TenantLru(_MAX_SESSIONS)
        """The newest last."""

    def agents_of(self, server: str, tenant: TenantId, session: str) -> OrderedDict[SessionId, None]:
        found = self._agents.get(tenant, (server, session)) if session else None
        return found if found is not None else OrderedDict()

    def used_by(self, server: str, tenant: TenantId, session: str, agent: SessionId) -> None:
        """Nothing is remembered of a session without an id."""
        if not session:
            return
        agents = self.agents_of(server, tenant, session)
        agents[agent] = None
        agents.move_to_end(agent)
        if len(agents) > _MAX_AGENTS:
            agents.popitem(last=False)
        self._agents.put(tenant, (server, session), agents)

    def forget(self, server: str, tenant: TenantId, session: str) -> None:
        """It is over. An unknown one is no error."""
        self._agents.pop(tenant, (server, session))
