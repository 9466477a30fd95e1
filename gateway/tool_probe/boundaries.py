"""Tool boundaries: which tool calls of a session are open, and since when.

Source: MARS (§4.1): tool start and end are state changes of the unified information stream.

Symbols: *active tools* → `active_sessions`.

Deviations: MARS instruments the agent; we infer. A call opens when the response that carries it ends
(its client may start the tool earlier, while decoding goes on) and closes when a request brings its
result. A call in an answer's text has no id; it closes when its conversation goes on. So does, without having
ended, a call that the conversation goes on without; one that nobody ever answers (a final `finish` tool, a
killed agent) stays open until its session ends. Tools that the engine runs itself are no boundaries.

Invariants: a call is open at most once; at most `max_open_calls` per session are kept, newest first;
`active_sessions` counts exactly the sessions that have an open call.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.domain.ids import RequestId, SessionId, TenantId
from gateway.domain.request import ToolCall
from gateway.domain.tool_span import ToolSpan
from gateway.tool_probe.calls import NOBODY, Asking, ClosedCalls, OpenCall, ToolRun
from gateway.tool_probe.traced import TracedCalls, TracedCallsConfig


class ToolBoundariesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_open_calls: Annotated[int, Meta(ge=1)] = 256
    """Open calls kept per session."""
    spans: TracedCallsConfig = TracedCallsConfig()


class ToolBoundaries:
    def __init__(self, config: ToolBoundariesConfig) -> None:
        self._config = config
        self._open: dict[SessionId, dict[str, OpenCall]] = {}
        self.traced = TracedCalls(config.spans)

    @property
    def active_sessions(self) -> int:
        return len(self._open)

    def open_calls(self, session: SessionId) -> tuple[OpenCall, ...]:
        return tuple(self._open.get(session, {}).values())

    def opened(
        self,
        session: SessionId,
        turn: RequestId,
        calls: Sequence[ToolCall],
        *,
        asking: Asking = NOBODY,
        now: float,
    ) -> tuple[str, ...]:
        """A response ended with these calls. Returns the names of those that are newly open."""
        if not calls:
            return ()
        most = self._config.max_open_calls
        open_calls = self._open.get(session, {})
        names = []
        for call in calls[-most:]:
            if call.id not in open_calls and not call.is_at_engine:
                opened = OpenCall(call.id, call.name, session, turn, now, asking)
                open_calls[call.id] = opened
                names.append(call.name)
                if self.traced.is_on:
                    self.traced.opened(opened)
        while len(open_calls) > most:
            self.traced.forget(open_calls.pop(next(iter(open_calls))))
        if open_calls:
            self._open[session] = open_calls
        return tuple(names)

    def text_called(
        self,
        session: SessionId,
        turn: RequestId,
        names: Sequence[str],
        *,
        asking: Asking = NOBODY,
        now: float,
    ) -> None:
        """A response ended whose text asks for these tools."""
        calls = [ToolCall(f"{turn}#{number}", name) for number, name in enumerate(names)]
        self.opened(session, turn, calls, asking=asking, now=now)

    def results_came(
        self, session: SessionId, call_ids: Iterable[str], *, went_on: RequestId | None = None, now: float
    ) -> ClosedCalls | None:
        """A request brought these results; the conversation goes on from the turn `went_on`. None if it
        closes no open call."""
        open_calls = self._open.get(session)
        if not open_calls:
            return None
        closed = [open_calls.pop(call_id) for call_id in call_ids if call_id in open_calls]
        if went_on is not None and open_calls:
            left = [call_id for call_id, call in open_calls.items() if call.turn == went_on]
            for call_id in left:
                call = open_calls.pop(call_id)
                if call.is_in_text:
                    closed.append(call)
                else:
                    self.traced.forget(call)
        if not open_calls:
            del self._open[session]
        if not closed:
            return None
        first_s = closed[0].started_s if len(closed) == 1 else min([c.started_s for c in closed])
        return ClosedCalls(tuple([c.name for c in closed]), now - first_s, tuple(closed))

    def forget(self, session: SessionId) -> None:
        """The session ended, or moved on without answering its calls."""
        for call in self._open.pop(session, {}).values():
            self.traced.forget(call)

    def told(
        self, spans: Iterable[ToolSpan], tenant: TenantId | None, *, now: float
    ) -> tuple[list[OpenCall], list[ToolRun]]:
        """Agents' own spans came, as `TracedCalls.told`."""
        if not self.traced.is_on:
            self.traced.is_on = True
            for calls in self._open.values():
                for call in calls.values():
                    self.traced.opened(call)
        return self.traced.told(spans, tenant, now=now)
