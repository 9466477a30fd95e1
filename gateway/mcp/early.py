"""Calls that the gateway makes before their agent does: when the model's answer has said what it wants, and
goes on.

Source: Sutradhara (§4.2), tools dispatched while decoding goes on; for what only reads alone.

Deviations: the paper's orchestrator runs the tools. Here the agent does, and knows nothing of it: its own
call, when it comes, gets the answer that is under way.

Invariants: only a tool is called early that its server declares read-only, in this MCP session, and that the
operator names, and none behind a call in the same answer that may be of another tool; at most once for each
call that a model asks for; an early call answers at most one call, of the same MCP session, tool and
arguments; those that nobody wanted, several times in a row, stop it for this tool in this MCP session; of a
turn at most `_MAX_OF_TURN` are there, of a tenant `_MAX_OF_TENANT`.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from gateway.domain.ids import RequestId as TurnId
from gateway.domain.ids import TenantId
from gateway.domain.words import Word
from gateway.mcp.calls import Asked
from gateway.mcp.sessions import McpSession

_MAX_OF_TURN: Final = 16
_MAX_OF_TENANT: Final = 64
_MAX_WASTED: Final = 3
"""In a row."""


class EarlyOutcome(Word):
    CLAIMED = "claimed"
    UNCLAIMED = "unclaimed"
    """Nobody asked for it in time."""
    CANCELLED = "cancelled"
    """The answer that asks for it broke off, or the MCP session ended."""
    FAILED = "failed"
    OVERSIZED = "oversized"
    NO_ROOM = "no_room"
    """It was not made: the server has as many calls as it may."""


class EarlyCall(msgspec.Struct, eq=False):
    """One that was made, and that nobody has claimed."""

    asked: Asked
    mcp: McpSession
    tool: str
    request_id: str
    turn_over_s: float | None = None
    """When the answer that asks for it ended."""


class EarlyCalls:
    def __init__(self) -> None:
        self._by: dict[tuple[McpSession, str, bytes], list[EarlyCall]] = {}
        self._of_turn: dict[TurnId, list[EarlyCall]] = {}
        self._of_tenant: Counter[TenantId] = Counter()
        self._harmless: dict[TurnId, int] = {}
        """How many calls of an answer came so far, all of which only read; less than 0 if one may not."""

    def __iter__(self) -> Iterator[EarlyCall]:
        return (early for calls in self._by.values() for early in calls)

    def tool_for(self, asked: Asked, mcp: McpSession, allowed: Collection[str]) -> str | None:
        """The tool that this call is of, if it is one that may be called early."""
        tool = mcp.tool_shown_as(asked.name, asked.session)
        return tool if tool is not None and tool in allowed and mcp.tools[tool] else None

    def is_next(self, turn: TurnId, before: int, *, only_reads: bool) -> bool:
        """Whether no call that may write stands before this one in its answer, which is the `before`-th."""
        so_far = self._harmless.get(turn, 0)
        if not only_reads or so_far != before:
            self._harmless[turn] = -1
            return False
        self._harmless[turn] = so_far + 1
        return True

    def has_room(self, asked: Asked, mcp: McpSession, tool: str) -> bool:
        is_wanted = mcp.wasted.get(tool, 0) < _MAX_WASTED
        is_little = len(self._of_turn.get(asked.turn, ())) < _MAX_OF_TURN
        return is_wanted and is_little and self._of_tenant[mcp.tenant] < _MAX_OF_TENANT

    def made(self, early: EarlyCall) -> None:
        self._by.setdefault(_place(early), []).append(early)
        self._of_turn.setdefault(early.asked.turn, []).append(early)
        self._of_tenant[early.mcp.tenant] += 1

    def claim(self, mcp: McpSession, tool: str, key: bytes, call_id: str | None = None) -> EarlyCall | None:
        alike = self._by.get((mcp, tool, key))
        if not alike:
            return None
        early = next((each for each in alike if each.asked.id == call_id), alike[0])
        self._remove(early)
        mcp.wasted.pop(tool, None)
        return early

    def drop(self, early: EarlyCall, *, is_waste: bool) -> bool:
        """Nobody will get it; False if somebody has. `is_waste`: nobody wanted it."""
        if early not in self._by.get(_place(early), ()):
            return False
        self._remove(early)
        if is_waste:
            early.mcp.wasted[early.tool] = early.mcp.wasted.get(early.tool, 0) + 1
        return True

    def turn_over(self, turn: TurnId, *, now: float) -> list[EarlyCall]:
        self._harmless.pop(turn, None)
        calls = list(self._of_turn.get(turn, ()))
        for early in calls:
            early.turn_over_s = now
        return calls

    def of_session(self, mcp: McpSession) -> list[EarlyCall]:
        return [early for early in self if early.mcp is mcp]

    def _remove(self, early: EarlyCall) -> None:
        alike, of_turn = self._by[_place(early)], self._of_turn[early.asked.turn]
        alike.remove(early)
        of_turn.remove(early)
        if not alike:
            del self._by[_place(early)]
        if not of_turn:
            del self._of_turn[early.asked.turn]
        self._of_tenant[early.mcp.tenant] -= 1
        if not self._of_tenant[early.mcp.tenant]:
            del self._of_tenant[early.mcp.tenant]


def _place(early: EarlyCall) -> tuple[McpSession, str, bytes]:
    return early.mcp, early.tool, early.asked.key
