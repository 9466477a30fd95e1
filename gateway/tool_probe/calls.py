"""Tool calls while they are open and when they are over, and what their durations teach."""

import msgspec

from gateway.domain.ids import RequestId, SessionId


class OpenCall(msgspec.Struct, eq=False):
    id: str
    name: str
    session: SessionId
    turn: RequestId
    """Whose answer asks for it."""
    started_s: float
    """When its answer ended: most agents start a tool then. While that goes on, since when it is ready."""
    ready_s: float | None = None
    """When its arguments were complete, if that was seen before its answer ended; no tool starts sooner."""
    is_in_text: bool = False
    """So it has no id of its client's."""


class ClosedCalls(msgspec.Struct, frozen=True):
    """Calls whose results one request brought, in the order of its results."""

    names: tuple[str, ...]
    duration_s: float
    """From the first of them opened until now; they run in parallel."""
    ids: tuple[str, ...] = ()
    """Empty of those in a text, which have none of their client's."""


class ToolRun(msgspec.Struct, frozen=True, gc=False):
    """How long tools took: one, or several side by side of which only that is known."""

    session: SessionId
    agent: int
    """The key of its agent type."""
    names: tuple[str, ...]
    duration_s: float
