"""Tool boundaries: which tool calls of a session are open, and since when.

Source: MARS (§4.1): tool start and end are state changes of the unified information stream. Sutradhara
(§4.2): a tool may start when its call is decoded.

Symbols: *active tools* → `active_sessions`.

Deviations: MARS instruments the agent; we infer. A call is *ready* when its arguments end in the stream.
Nearly all agents start their tools after the response, without a sign: so a call is open, counted and timed,
from the end of the response. It closes when a request has its result. A call in text has no id; it closes
when its conversation goes on. So does, without an end, a call without a result; a call that is never answered
(a final `finish` tool, a killed agent) stays open until its session ends. Tools of the engine itself are no
boundaries.

Invariants: a call is ready or open at most once; at most `max_open_calls` of either per session are kept,
newest first; a call is ready only while its turn lives; `active_sessions` counts exactly the sessions with an
open call.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.domain.ids import RequestId, SessionId
from gateway.domain.request import ToolCall
from gateway.tool_probe.call_records import ClosedCalls, OpenCall


class ToolBoundariesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_open_calls: Annotated[int, Meta(ge=1)] = 256
    """Open calls kept per session."""


class ToolBoundaries:
    def __init__(self, config: ToolBoundariesConfig) -> None:
        self._config = config
        self._open: dict[SessionId, dict[str, OpenCall]] = {}
        self._ready: dict[SessionId, dict[str, OpenCall]] = {}

    @property
    def active_sessions(self) -> int:
        return len(self._open)

    def open_calls(self, session: SessionId) -> tuple[OpenCall, ...]:
        return tuple(self._open.get(session, {}).values())

    def ready_calls(self, session: SessionId) -> tuple[OpenCall, ...]:
        return tuple(self._ready.get(session, {}).values())

    def ready(self, session: SessionId, turn: RequestId, call: ToolCall, *, now: float) -> None:
        ready = self._ready.setdefault(session, {})
        if call.id in ready or call.id in self._open.get(session, {}):
            return
        ready[call.id] = OpenCall(call.id, call.name, session, turn, now, ready_s=now)
        if len(ready) > self._config.max_open_calls:
            del ready[next(iter(ready))]

    def opened(
        self,
        session: SessionId,
        turn: RequestId,
        calls: Sequence[ToolCall],
        *,
        are_in_text: bool = False,
        now: float,
    ) -> tuple[str, ...]:
        ready: dict[str, OpenCall] = {}
        if (of_session := self._ready.get(session)) is not None:
            for call_id, was_ready in tuple(of_session.items()):
                if was_ready.turn == turn:
                    ready[call_id] = of_session.pop(call_id)
            if not of_session:
                del self._ready[session]
        if not calls and not ready:
            return ()
        most = self._config.max_open_calls
        open_calls = self._open.get(session, {})
        names = []
        for call in calls[-most:]:
            if call.id not in open_calls and not call.is_at_engine:
                opened = ready.pop(call.id, None)
                if opened is not None:
                    opened.started_s = now
                else:
                    opened = OpenCall(call.id, call.name, session, turn, now, is_in_text=are_in_text)
                open_calls[call.id] = opened
                names.append(call.name)
        while len(open_calls) > most:
            del open_calls[next(iter(open_calls))]
        if open_calls:
            self._open[session] = open_calls
        return tuple(names)

    def text_called(self, session: SessionId, turn: RequestId, names: Sequence[str], *, now: float) -> None:
        calls = [ToolCall(f"{turn}#{number}", name) for number, name in enumerate(names)]
        self.opened(session, turn, calls, are_in_text=True, now=now)

    def results_came(
        self, session: SessionId, call_ids: Iterable[str], *, went_on: RequestId | None = None, now: float
    ) -> ClosedCalls | None:
        """`went_on`: the turn that the request continues."""
        open_calls = self._open.get(session)
        if not open_calls:
            return None
        closed: list[OpenCall] = []
        for call_id in call_ids:
            call = open_calls.pop(call_id, None)
            if call is not None:
                closed.append(call)
        if went_on is not None and open_calls:
            left = [call for call in open_calls.values() if call.turn == went_on]
            for each in left:
                del open_calls[each.id]
            closed += [call for call in left if call.is_in_text]
        if not open_calls:
            del self._open[session]
        if not closed:
            return None
        if len(closed) == 1:
            [only] = closed
            return ClosedCalls((only.name,), now - only.started_s, ("" if only.is_in_text else only.id,))
        first_s = min([each.started_s for each in closed])
        ids = tuple(["" if each.is_in_text else each.id for each in closed])
        return ClosedCalls(tuple([each.name for each in closed]), now - first_s, ids)

    def forget(self, session: SessionId) -> None:
        self._open.pop(session, None)
        self._ready.pop(session, None)
