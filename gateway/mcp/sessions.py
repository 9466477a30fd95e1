"""MCP sessions: which tools of each only read, as its server says, and which agents' sessions use it.

An MCP session is an agent's once one of its calls was joined to a call of that agent. It learns then how the
agent prefixes the names of this server's tools.

Invariants: what is known of a session is its tenant's alone; a tool that a listing does not declare read-only
is none that reads, nor is any after the server said that its tools changed, until they are listed again; at
most `_MAX_SESSIONS` are remembered, with `_MAX_AGENTS` agents and `_MAX_TOOLS` tools each.
"""

from collections import OrderedDict
from typing import Final

import msgspec
from msgspec import Raw

from gateway.domain.ids import SessionId, TenantId
from gateway.domain.tenant_lru import TenantLru
from gateway.mcp.tools import prefix_of
from gateway.wire.body import UNREADABLE

_MAX_SESSIONS: Final = 4096
_MAX_AGENTS: Final = 64
_MAX_TOOLS: Final = 1024


class McpSession(msgspec.Struct, eq=False):
    server: str
    tenant: TenantId
    id: str
    """As its server named it."""
    tools: dict[str, bool] = {}
    """Those that it listed, and whether they only read."""
    agents: OrderedDict[SessionId, str] = msgspec.field(default_factory=OrderedDict)
    """Who uses it, and what stands before its tools' names there; the newest last."""
    lines: bytes = b""
    """How its client's requests begin, up to what says how long the body is; empty if that is not known."""
    wants_progress: bool = False
    """Its client asked to be told of its last call's progress."""
    call_id_field: str = ""
    """In which field of `_meta` it says which call of its model a call is."""
    wasted: dict[str, int] = {}
    """Early calls of each tool that nobody wanted, since one was wanted."""

    def __repr__(self) -> str:
        """Without what may be a secret: it may be logged."""
        return f"McpSession({self.server!r}, {self.tenant!r})"

    def listed(self, params: bytes, result: bytes) -> None:
        """A `tools/list` was answered. Without a cursor it is the first page of a new listing."""
        try:
            asked, page = _CURSOR.decode(params or b"{}"), _PAGE.decode(result)
        except UNREADABLE:
            self.tools.clear()
            return
        if asked.cursor is None:
            self.tools.clear()
        for raw in page.tools:
            try:
                tool = _TOOL.decode(raw)
            except UNREADABLE:
                continue
            if len(self.tools) < _MAX_TOOLS or tool.name in self.tools:
                self.tools[tool.name] = tool.only_reads

    def tool_shown_as(self, shown: str, agent: SessionId) -> str | None:
        """The tool that this agent means; None if that is not certain."""
        prefix = self.agents.get(agent)
        if prefix is None:
            return None
        meant = [tool for tool in self.tools if prefix_of(shown, tool) == prefix]
        return meant[0] if len(meant) == 1 else None


class _Cursor(msgspec.Struct):
    cursor: str | None = None


class _Page(msgspec.Struct):
    tools: list[Raw]


class _Annotations(msgspec.Struct):
    read_only: bool = msgspec.field(name="readOnlyHint", default=False)
    destructive: bool = msgspec.field(name="destructiveHint", default=False)


class _Execution(msgspec.Struct):
    task_support: str = msgspec.field(name="taskSupport", default="forbidden")


class _Tool(msgspec.Struct):
    name: str
    annotations: _Annotations | None = None
    execution: _Execution | None = None

    @property
    def only_reads(self) -> bool:
        hints, execution = self.annotations, self.execution
        is_plain = execution is None or execution.task_support != "required"
        return hints is not None and hints.read_only and not hints.destructive and is_plain


_CURSOR: Final = msgspec.json.Decoder(_Cursor)
_PAGE: Final = msgspec.json.Decoder(_Page)
_TOOL: Final = msgspec.json.Decoder(_Tool)

_Key = tuple[str, str]


class McpSessions:
    def __init__(self) -> None:
        self._all: TenantLru[TenantId, _Key, McpSession] = TenantLru(_MAX_SESSIONS)
        self._of_agents: TenantLru[TenantId, SessionId, dict[str, McpSession]] = TenantLru(_MAX_SESSIONS)
        """The newest of each server."""

    def get(self, server: str, tenant: TenantId, session: str) -> McpSession | None:
        return self._all.get(tenant, (server, session)) if session else None

    def known(self, server: str, tenant: TenantId, session: str) -> McpSession | None:
        """The same; it is remembered from now on. None if it has no id."""
        found = self.get(server, tenant, session)
        if found is None and session:
            found = McpSession(server, tenant, session)
            for _, _, dropped in self._all.put(tenant, (server, session), found):
                self._unlink(dropped)
        return found

    def forget(self, server: str, tenant: TenantId, session: str) -> None:
        """It is over. An unknown one is no error."""
        found = self._all.pop(tenant, (server, session))
        if found is not None:
            self._unlink(found)

    def used_by(self, mcp: McpSession, agent: SessionId, prefix: str) -> None:
        mcp.agents[agent] = prefix
        mcp.agents.move_to_end(agent)
        if len(mcp.agents) > _MAX_AGENTS:
            self._unlink_agent(mcp, mcp.agents.popitem(last=False)[0])
        servers = self._of_agents.get(mcp.tenant, agent)
        if servers is None:
            servers = {}
            self._of_agents.put(mcp.tenant, agent, servers)
        servers[mcp.server] = mcp

    def of_agent(self, tenant: TenantId, agent: SessionId) -> list[McpSession]:
        servers = self._of_agents.get(tenant, agent)
        return list(servers.values()) if servers is not None else []

    def _unlink(self, mcp: McpSession) -> None:
        for agent in mcp.agents:
            self._unlink_agent(mcp, agent)

    def _unlink_agent(self, mcp: McpSession, agent: SessionId) -> None:
        servers = self._of_agents.get(mcp.tenant, agent)
        if servers is not None and servers.get(mcp.server) is mcp:
            del servers[mcp.server]
            if not servers:
                self._of_agents.pop(mcp.tenant, agent)
