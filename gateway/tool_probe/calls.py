"""Tool calls while they are open and when they are over, and what their durations teach."""

import msgspec

from gateway.domain.ids import RequestId, SessionId, TenantId


class Asking(msgspec.Struct, frozen=True, gc=False):
    """The turn whose answer asks for calls."""

    tenant: TenantId = TenantId("")
    trace: str = ""
    """Of its `traceparent`, if it carried one."""
    arrived_s: float = 0.0
    """No tool that it asks for began sooner."""


NOBODY = Asking()


class OpenCall(msgspec.Struct, eq=False):
    id: str
    name: str
    session: SessionId
    turn: RequestId
    """Whose answer asks for it."""
    started_s: float
    """When its answer ended: most agents start a tool then. While that goes on, since when it is ready."""
    asking: Asking = NOBODY
    ready_s: float | None = None
    """When its arguments were complete, if that was seen before its answer ended; no tool starts sooner."""
    phase: "Phase | None" = None
    """None while it is open."""
    took_s: float | None = None
    """As its agent's own span tells; None while none has come."""
    has_failed: bool = False
    """The same span says so."""
    is_seen: bool = False
    """It was the gateway that saw it run: no span of the agent's own has to come."""

    @property
    def is_in_text(self) -> bool:
        return self.id.startswith(f"{self.turn}#")


class ClosedCalls(msgspec.Struct, frozen=True):
    """Calls whose results one request brought, in the order of its results."""

    names: tuple[str, ...]
    duration_s: float
    """From the first of them opened until now; they run in parallel."""
    calls: tuple[OpenCall, ...] = ()


class ToolRun(msgspec.Struct, frozen=True, gc=False):
    """How long tools took: one, or several side by side of which only that is known."""

    session: SessionId
    agent: int
    """The key of its agent type."""
    names: tuple[str, ...]
    duration_s: float


class Phase(msgspec.Struct, eq=False):
    """A tool phase that is over."""

    run: ToolRun
    """What is seen of it from outside."""
    closed_s: float
    calls: tuple[OpenCall, ...]
    is_learned: bool = False
    """As it is seen from outside."""

    @property
    def is_told(self) -> bool:
        return any(call.took_s is not None for call in self.calls)

    def run_of(self, call: OpenCall) -> ToolRun:
        assert call.took_s is not None
        return ToolRun(self.run.session, self.run.agent, (call.name,), call.took_s)
