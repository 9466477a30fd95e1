"""Calls of tools: which call of an agent's model is it that passes, and what becomes of it.

A call that passes is joined to one that a model's answer asks for, of the same tenant, by the tool's name
and its arguments. Where several could be meant, the one that its agent names is, if it names any; else one of
an agent that is known to use this MCP session; of one agent's, one of its newest turn, the first that was
asked for. Where two agents' could be meant, none is.

Invariants: a call that was asked for is joined at most once; none is joined that is not open; of a tenant's
calls none keep another tenant's from being joined; at most `_MAX_ASKED` are remembered.
"""

from collections.abc import Callable, Container
from typing import Final

import msgspec

from gateway.domain.ids import PoolId, SessionId, TenantId
from gateway.domain.ids import RequestId as TurnId
from gateway.domain.tenant_lru import TenantLru
from gateway.domain.words import Word
from gateway.mcp.call_limit import Place
from gateway.mcp.messages import Message, RequestId
from gateway.mcp.sessions import McpSession
from gateway.mcp.tools import is_shown_as
from gateway.wire.body import UNREADABLE

_MAX_ASKED: Final = 16_384
_MAX_ALIKE: Final = 256
"""Calls of one tenant with the same arguments."""


class Asked(msgspec.Struct, eq=False):
    """A model's answer asks for it."""

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
    """The server says so, in JSON-RPC or in HTTP."""
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
    tool: str = ""
    """Empty if it could not be read."""
    key: bytes | None = None
    asked: Asked | None = None
    place: Place | None = None
    """Where calls are limited."""
    was_sent: bool = False
    outcome: Outcome | None = None
    ended_s: float = 0.0

    @property
    def has_result(self) -> bool:
        return self.outcome in _TELLING


_TELLING: Final = frozenset((Outcome.OK, Outcome.TOOL_ERROR, Outcome.ERROR))


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


class AskedCalls:
    def __init__(self, is_open: Callable[[Asked], bool]) -> None:
        """`is_open`: its result has not come back to the model."""
        self._is_open = is_open
        self._all: TenantLru[TenantId, Asked, Asked] = TenantLru(_MAX_ASKED)
        self._by: dict[tuple[TenantId, bytes], list[Asked]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, asked: Asked) -> None:
        alike = self._by.setdefault((asked.tenant, asked.key), [])
        if len(alike) >= _MAX_ALIKE:
            self.drop(alike[0])
        alike = self._by.setdefault((asked.tenant, asked.key), alike)
        alike.append(asked)
        for _, dropped, _ in self._all.put(asked.tenant, asked, asked):
            self._unindex(dropped)

    def drop(self, asked: Asked) -> None:
        """It will not be joined. One that is not there is no error."""
        if self._all.pop(asked.tenant, asked) is not None:
            self._unindex(asked)

    def join(
        self,
        tenant: TenantId,
        tool: str,
        key: bytes,
        known: Container[SessionId],
        *,
        call_id: str | None = None,
    ) -> Asked | None:
        """The call that this is, which is no more there then. `known`: agents that use the MCP session;
        `call_id`: which call its agent says that it is."""
        fits: list[Asked] = []
        for asked in tuple(self._by.get((tenant, key), ())):
            if not self._is_open(asked):
                self.drop(asked)
            elif is_shown_as(asked.name, tool):
                fits.append(asked)
        fits = [asked for asked in fits if asked.id == call_id] or fits
        fits = [asked for asked in fits if asked.session in known] or fits
        if not fits or any(asked.session != fits[0].session for asked in fits):
            return None
        newest = fits[-1].turn
        found = next(asked for asked in fits if asked.turn == newest)
        self.drop(found)
        return found

    def _unindex(self, asked: Asked) -> None:
        place = (asked.tenant, asked.key)
        alike = self._by.get(place, [])
        if asked in alike:
            alike.remove(asked)
        if not alike:
            self._by.pop(place, None)
