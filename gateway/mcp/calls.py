"""Calls of tools: which call of an agent's model a passing call is, and its outcome.

A passing call is joined to one that a model's answer requests, of the same tenant, by the tool's name and its
arguments. Of several matches the one that its agent names is joined, if it names any; else one of an agent
known to use this MCP session; of one agent's, the first of its newest turn. Matches of two agents: none.

Invariants: a requested call is joined at most once, and only while it is open; no tenant's calls keep
another's from being joined; at most `_MAX_REQUESTED` are remembered.
"""

from collections.abc import Callable, Container
from typing import Final

import msgspec

from gateway.domain.ids import PoolId, SessionId, TenantId
from gateway.domain.ids import RequestId as TurnId
from gateway.domain.string_enums import Word
from gateway.domain.tenant_lru import TenantLru
from gateway.mcp.call_limit import Place
from gateway.mcp.messages import Message, RequestId
from gateway.mcp.sessions import McpSession
from gateway.mcp.tools import is_shown_as
from gateway.wire.body import UNREADABLE

_MAX_REQUESTED: Final = 16_384
# Calls of one tenant with the same arguments.
_MAX_ALIKE: Final = 256


class RequestedCall(msgspec.Struct, eq=False):
    """Requested by a model's answer."""

    tenant: TenantId
    session: SessionId
    turn: TurnId
    id: str
    name: str
    """As the agent shows it to its model."""
    key: bytes
    pool: PoolId | None = None


class Outcome(Word):
    OK = "ok"
    TOOL_ERROR = "tool_error"
    ERROR = "error"
    """By the server, in JSON-RPC or in HTTP."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """Nobody saw its result: the client left, or the stream ended without it."""
    UNREACHED = "unreached"
    """The server was not there, or went away before it answered."""
    REFUSED = "refused"
    """By the gateway: too many wait, or it waited too long."""


class Call(msgspec.Struct, eq=False):
    """A `tools/call` that passes, or what may be one."""

    mcp_session: McpSession
    request_id: RequestId | None
    began_s: float
    """When it was sent to the server."""
    requested: RequestedCall | None = None
    place: Place | None = None
    """Where calls are limited."""
    was_sent: bool = False
    outcome: Outcome | None = None


class _Result(msgspec.Struct):
    is_error: msgspec.Raw = msgspec.field(name="isError", default=msgspec.Raw())


_RESULT: Final = msgspec.json.Decoder(_Result)


def outcome_of(answer: Message) -> Outcome:
    if not answer.result:
        return Outcome.ERROR
    try:
        is_error = bytes(_RESULT.decode(answer.result).is_error) == b"true"
    except UNREADABLE:
        is_error = False
    return Outcome.TOOL_ERROR if is_error else Outcome.OK


class RequestedCalls:
    def __init__(self, is_open: Callable[[RequestedCall], bool]) -> None:
        """`is_open`: its result has not come back to the model."""
        self._is_open = is_open
        self._all: TenantLru[TenantId, RequestedCall, RequestedCall] = TenantLru(_MAX_REQUESTED)
        self._by: dict[tuple[TenantId, bytes], list[RequestedCall]] = {}

    def add(self, requested: RequestedCall) -> None:
        alike = self._by.setdefault((requested.tenant, requested.key), [])
        if len(alike) >= _MAX_ALIKE:
            self.drop(alike[0])
        alike.append(requested)
        for _, dropped, _ in self._all.put(requested.tenant, requested, requested):
            self._unindex(dropped)

    def drop(self, requested: RequestedCall) -> None:
        """It will not be joined. One that is not there is no error."""
        if self._all.pop(requested.tenant, requested) is not None:
            self._unindex(requested)

    def join(
        self,
        tenant: TenantId,
        tool: str,
        key: bytes,
        known: Container[SessionId],
        *,
        call_id: str | None = None,
    ) -> RequestedCall | None:
        """Removes and returns the matching call. `known`: agents that use the MCP session; `call_id`: the id
        of the model's call, if the agent sends it."""
        fits: list[RequestedCall] = []
        for requested in tuple(self._by.get((tenant, key), ())):
            if not self._is_open(requested):
                self.drop(requested)
            elif is_shown_as(requested.name, tool):
                fits.append(requested)
        fits = [requested for requested in fits if requested.id == call_id] or fits
        fits = [requested for requested in fits if requested.session in known] or fits
        if not fits or any(requested.session != fits[0].session for requested in fits):
            return None
        newest = fits[-1].turn
        found = next(requested for requested in fits if requested.turn == newest)
        self.drop(found)
        return found

    def _unindex(self, requested: RequestedCall) -> None:
        place = (requested.tenant, requested.key)
        self._by[place].remove(requested)
        if not self._by[place]:
            del self._by[place]
