"""Open and closed tool calls, and their durations."""

import msgspec

from gateway.domain.ids import RequestId, SessionId


class OpenCall(msgspec.Struct, eq=False):
    id: str
    name: str
    session: SessionId
    turn: RequestId
    """Of the call."""
    started_s: float
    """The end of its answer, when most agents start a tool; before that, as `ready_s`."""
    ready_s: float | None = None
    """When its arguments were complete, if before the end of its answer; no tool starts sooner."""
    is_in_text: bool = False
    """Without an id."""


class ClosedCalls(msgspec.Struct, frozen=True):
    """Calls with results in one request, in their order."""

    names: tuple[str, ...]
    duration_s: float
    """Since the first one opened; they run in parallel."""
    ids: tuple[str, ...] = ()
    """Empty for calls in text."""


class ToolRun(msgspec.Struct, frozen=True, gc=False):
    """One tool, or several in parallel."""

    session: SessionId
    agent: int
    """The key of its agent type."""
    names: tuple[str, ...]
    duration_s: float
