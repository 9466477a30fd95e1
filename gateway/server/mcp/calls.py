"""Passing tool calls: joined to those that models request, limited and counted."""

import logging
from collections import OrderedDict
from typing import Final

from gateway.admission.classes import ServiceClass
from gateway.config import Config
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import RequestId as TurnId
from gateway.domain.ids import TenantId
from gateway.domain.request import ToolCall
from gateway.mcp.answers import AnswerWatch
from gateway.mcp.call_limit import CallLimit, Place
from gateway.mcp.calls import Call, Outcome, RequestedCall, RequestedCalls, outcome_of
from gateway.mcp.messages import Kind, Message, RequestId
from gateway.mcp.sessions import McpSession, McpSessions
from gateway.mcp.tools import arguments_key, read_tool_use
from gateway.server.proxy.driver import Driver
from gateway.telemetry.mcp_counts import McpCounts
from gateway.upstream.one_shot import OneShot

_log: Final = logging.getLogger(__name__)
# A call whose stream broke off is lost if its client does not come back for the rest within this.
_RESUMED_WITHIN_S: Final = 60.0
_MAX_SUSPENDED: Final = 4096

_WITH_RESULT: Final = frozenset((Outcome.OK, Outcome.TOOL_ERROR, Outcome.ERROR))

_Place = tuple[McpSession, RequestId]


class NotAdmitted(Exception):  # noqa: N818 - an outcome
    def __init__(self, refusal: Refusal | None) -> None:
        super().__init__()
        self.refusal = refusal


class McpCalls:
    def __init__(self, driver: Driver, counts: McpCounts, config: Config) -> None:
        self._driver = driver
        self._counts = counts
        age_s = config.admission.classes.age_s
        self._limits = {
            each.name: CallLimit(each.max_concurrent_calls, most_waiting=each.max_waiting_calls, age_s=age_s)
            for each in config.mcp
            if each.max_concurrent_calls
        }
        self._max_wait_s = {each.name: each.max_wait_s for each in config.mcp}
        self._background = {
            TenantId(each.name) for each in config.tenants if each.quota.service_class == "background"
        }
        # Those who wait until they may be sent.
        self._waits: dict[Place, tuple[Call, OneShot]] = {}
        self._requested = RequestedCalls(self._is_open)
        self._running: dict[_Place, Call] = {}
        # Those of the running ones whose stream broke off, and when.
        self._suspended: OrderedDict[_Place, float] = OrderedDict()
        self.sessions = McpSessions()
        driver.on_call = self._on_requested

    def _on_requested(self, turn: TurnId, call: ToolCall, arguments: bytes) -> None:
        try:
            live = self._driver.coordinator.live[turn]
            key = None if call.is_at_engine else arguments_key(arguments)
            if key is not None and live.session is not None:
                session = live.session.session
                self._requested.add(
                    RequestedCall(live.tenant, session, turn, call.id, call.name, key, live.pool)
                )
        except Exception:  # noqa: BLE001 - a bug of ours costs what we know of a call, not the answer
            _log.exception("a call that a model requests was not understood")

    def _is_open(self, requested: RequestedCall) -> bool:
        tools = self._driver.coordinator.sessions.tools
        calls = (*tools.ready_calls(requested.session), *tools.open_calls(requested.session))
        return any(call.id == requested.id and call.turn == requested.turn for call in calls)

    def came(self, session: McpSession, message: Message) -> Call:
        """A message that may be a call. `over` must follow, in one way or another."""
        call = Call(session, message.id, self._driver.clock())
        use = read_tool_use(message.params) if message.kind is Kind.REQUEST else None
        if use is not None and (key := arguments_key(use.arguments)) is not None:
            known = self.sessions.agents_of(session)
            requested = self._requested.join(session.tenant, use.name, key, known, call_id=use.call_id)
            if requested is not None:
                call.requested = requested
                self._counts.joined[session.server] += 1
                self.sessions.used_by(session, requested.session)
        if (place := _place_of(call)) is not None:
            self._running.setdefault(place, call)
        return call

    async def admitted(self, call: Call) -> None:
        """Waits until it may be sent. Raises `NotAdmitted` if it may not; it is over then."""
        limit = self._limits.get(call.mcp_session.server)
        if limit is None:
            return
        came_s = self._driver.clock()
        call.place = place = limit.enter(is_proactive=self._is_proactive(call), now=came_s)
        if place is None:
            self.over(call, Outcome.REFUSED)
            raise NotAdmitted(_FULL)
        if place.may_run:
            return
        moment = OneShot()
        self._waits[place] = (call, moment)
        self._counts.waiting[call.mcp_session.server] += 1
        try:
            await moment
        finally:
            self._counts.waiting[call.mcp_session.server] -= 1
            self._counts.waits[call.mcp_session.server].add(self._driver.clock() - came_s)
            del self._waits[place]
        if call.outcome is not None:
            raise NotAdmitted(None if call.outcome is Outcome.CANCELLED else _LATE)

    def _is_proactive(self, call: Call) -> bool:
        requested = call.requested
        if requested is not None and requested.pool is not None:
            known = self._driver.coordinator.admission.class_of(requested.session, requested.pool)
            if known is not None:
                return known is ServiceClass.PROACTIVE
        return call.mcp_session.tenant in self._background

    def _leave(self, call: Call) -> None:
        place = call.place
        if place is None:
            return
        following = self._limits[call.mcp_session.server].leave(place, now=self._driver.clock())
        for each in (place, following):
            if each is not None and each in self._waits:
                # Not on the spot: whoever leaves has more to do.
                self._driver.call_soon(self._waits[each][1].set)

    def sent(self, call: Call) -> None:
        call.began_s = self._driver.clock()
        call.was_sent = True
        self._counts.running[call.mcp_session.server] += 1

    def over(self, call: Call, outcome: Outcome) -> None:
        if call.outcome is not None:
            return
        call.outcome = outcome
        place = _place_of(call)
        if place is not None and self._running.get(place) is call:
            del self._running[place]
            self._suspended.pop(place, None)
        self._counts.calls[call.mcp_session.server, outcome.value] += 1
        self._leave(call)
        if call.was_sent:
            self._counts.running[call.mcp_session.server] -= 1
            if outcome in _WITH_RESULT:
                self._counts.durations[call.mcp_session.server].add(self._driver.clock() - call.began_s)

    def cancelled(self, session: McpSession, request_id: RequestId) -> None:
        call = self._running.get((session, request_id))
        if call is not None:
            self.over(call, Outcome.CANCELLED)

    def observe(self, session: McpSession, call: Call | None, message: Message) -> None:
        """`message`: of a server; `call`: the one that opened this stream, if any."""
        if message.kind is not Kind.ANSWER or message.id is None:
            return
        if call is None or call.request_id != message.id:
            place = (session, message.id)
            call = self._running.get(place) if place in self._suspended else None
        if call is not None:
            self.over(call, outcome_of(message))

    def stream_ended(self, call: Call, watch: AnswerWatch, *, status: int, is_whole: bool) -> None:
        if call.outcome is not None:
            return
        place = _place_of(call)
        if status >= 400:
            self.over(call, Outcome.ERROR)
        elif is_whole and watch.is_blind:
            self.over(call, Outcome.OK)
        elif watch.may_resume and call.mcp_session.id and place is not None and self._running[place] is call:
            self._suspended[place] = self._driver.clock()
            if len(self._suspended) > _MAX_SUSPENDED:
                self._lose(next(iter(self._suspended)))
        else:
            self.over(call, Outcome.LOST)

    def is_suspended(self, call: Call) -> bool:
        place = _place_of(call)
        return place is not None and place in self._suspended and self._running[place] is call

    def sweep(self) -> None:
        now = self._driver.clock()
        while self._suspended:
            place, since_s = next(iter(self._suspended.items()))
            if since_s > now - _RESUMED_WITHIN_S:
                break
            self._lose(place)
        for name, limit in self._limits.items():
            for late in tuple(limit.overdue(before_s=now - self._max_wait_s[name])):
                self.over(self._waits[late][0], Outcome.REFUSED)

    def _lose(self, place: _Place) -> None:
        self._suspended.pop(place)
        self.over(self._running[place], Outcome.LOST)


def _place_of(call: Call) -> _Place | None:
    return None if call.request_id is None else (call.mcp_session, call.request_id)


_FULL: Final = Refusal(
    reason=RefusalReason.QUEUE_FULL,
    message="As many calls wait for this MCP server as may.",
    retry_after_s=5,
)
_LATE: Final = Refusal(
    reason=RefusalReason.QUEUE_TIMEOUT, message="The MCP server was busy for too long.", retry_after_s=5
)
