"""Early calls on the wire: made beside what clients send, held, and handed to the client that asks for one.

What is decided, and what is never done, stands in `gateway/mcp/early.py`.
"""

import itertools
import logging
import secrets
from collections.abc import Mapping
from typing import Final

from gateway.domain.ids import RequestId as TurnId
from gateway.domain.ids import TenantId
from gateway.mcp.calls import Asked, Outcome
from gateway.mcp.early import EarlyCall, EarlyCalls, EarlyOutcome
from gateway.mcp.early_answer import (
    cancellation,
    early_request,
    progress_token,
    with_request_id,
)
from gateway.mcp.messages import Message, RequestId
from gateway.mcp.sessions import McpSession
from gateway.mcp.tools import ToolUse, arguments_key
from gateway.server.connection import ClientConnection
from gateway.server.driver import Driver
from gateway.server.mcp_calls import McpCalls
from gateway.server.mcp_early_run import EarlyRun, Fate
from gateway.server.mcp_servers import McpServer
from gateway.server.outbound import head_lines
from gateway.server.request_head import RequestHead
from gateway.telemetry.mcp_counts import McpCounts
from gateway.upstream.errors import UpstreamError
from gateway.upstream.moments import Run
from gateway.wire.body import UNREADABLE

_log: Final = logging.getLogger(__name__)
_MAX_LINES_BYTES: Final = 16 << 10
_NOT_REPEATED: Final = frozenset(
    (b"accept-encoding", b"last-event-id", b"traceparent", b"tracestate", b"baggage", b"x-request-id")
)
"""Of a client's request, what an early call does not say again."""
_OF_NEWER_REVISIONS: Final = (b"mcp-name", b"mcp-method")
"""There a request's head repeats its body, and there are no sessions."""


class McpEarly:
    def __init__(
        self,
        driver: Driver,
        calls: McpCalls,
        servers: Mapping[str, McpServer],
        counts: McpCounts,
        *,
        dropped: frozenset[bytes],
    ) -> None:
        """`dropped`: header fields that no server gets."""
        self._driver = driver
        self._calls = calls
        self._servers = servers
        self._counts = counts
        self._dropped = dropped | _NOT_REPEATED
        self._early = EarlyCalls()
        self._runs: dict[EarlyCall, EarlyRun] = {}
        """Those that nobody has claimed."""
        self._under_way: dict[EarlyCall, Run] = {}
        self._claimed: dict[tuple[str, TenantId, str, RequestId | None], EarlyRun] = {}
        """By who claimed them, with which id."""
        self._telling: set[Run] = set()
        self._prefix = f"turnpike-{secrets.token_hex(8)}"
        self._numbers = itertools.count(1)
        calls.on_asked = self._was_asked_for
        driver.on_turn_over = self._turn_over

    @property
    def unclaimed(self) -> int:
        return len(self._runs)

    # --- what models ask for ---------------------------------------------------------------------

    def _was_asked_for(self, asked: Asked, arguments: bytes, before: int) -> None:
        found: list[tuple[McpSession, str]] = []
        for mcp in self._calls.sessions.of_agent(asked.tenant, asked.session):
            tool = self._early.tool_for(asked, mcp, self._servers[mcp.server].config.early_tools)
            if tool is not None:
                found.append((mcp, tool))
        if not self._early.is_next(asked.turn, before, only_reads=len(found) == 1):
            return
        mcp, tool = found[0]
        if mcp.lines and self._early.has_room(asked, mcp, tool):
            self._make(asked, arguments, mcp, tool)

    def _make(self, asked: Asked, arguments: bytes, mcp: McpSession, tool: str) -> None:
        request_id = f"{self._prefix}-{next(self._numbers)}"
        call = self._calls.early(asked, mcp, tool, request_id)
        if call is None:
            self._count(mcp.server, EarlyOutcome.NO_ROOM)
            return
        server = self._servers[mcp.server]
        body = early_request(request_id, tool, arguments.strip() or b"{}", asked.id, mcp)
        early = EarlyCall(asked, mcp, tool, request_id)
        run = EarlyRun(early, call, server, self._calls, self._driver.call_soon, self._is_too_much)
        self._early.made(early)
        self._runs[early] = run
        going = run.run(_chunks(mcp, body), server.config.early_result_bytes)
        self._under_way[early] = runner = Run(going, lambda: self._ended(early))
        runner.go_on()

    def _ended(self, early: EarlyCall) -> None:
        self._under_way.pop(early, None)
        run = self._runs.get(early)
        if run is not None and run.fate is not Fate.ANSWERED:
            self._drop(early, EarlyOutcome.FAILED)

    def _turn_over(self, turn: TurnId, is_whole: bool) -> None:
        try:
            for early in self._early.turn_over(turn, now=self._driver.clock()):
                if not is_whole:
                    self._drop(early, EarlyOutcome.CANCELLED)
        except Exception:  # noqa: BLE001 - a bug of ours costs early calls, not the turn
            _log.exception("early calls were not ended with their answer")

    def _is_too_much(self, early: EarlyCall) -> None:
        if early in self._runs:
            self._drop(early, EarlyOutcome.OVERSIZED)
        elif early in self._under_way:
            self._under_way[early].cancel()

    def _drop(self, early: EarlyCall, outcome: EarlyOutcome) -> None:
        if not self._early.drop(early, is_waste=outcome is EarlyOutcome.UNCLAIMED):
            return
        run, runner = self._runs.pop(early), self._under_way.get(early)
        self._count(early.mcp.server, outcome)
        if runner is None:
            return
        self._calls.over(run.call, Outcome.CANCELLED)
        runner.cancel()
        telling = self._tell(run.server, _chunks(early.mcp, cancellation(early.request_id)))
        told = Run(telling, lambda: self._telling.discard(told))
        self._telling.add(told)
        told.go_on()

    async def _tell(self, server: McpServer, chunks: list[bytes]) -> None:
        try:
            upstream = await server.link.exchange(list(chunks), is_head_request=False, may_repeat=False)
        except UpstreamError:
            return  # it is not there, and works on nothing
        server.link.release(upstream, reuse=upstream.take_whole() is not None)

    # --- what agents ask for ---------------------------------------------------------------------

    async def answers(
        self, client: ClientConnection, head: RequestHead, mcp: McpSession, message: Message, use: ToolUse
    ) -> bool:
        key = arguments_key(use.arguments)
        can_be, token = progress_token(use)
        if key is None or not can_be or use.has_more:
            return False
        early = self._early.claim(mcp, use.name, key, use.call_id)
        if early is None:
            return False
        run = self._runs.pop(early)
        place = (mcp.server, mcp.tenant, mcp.id, message.id)
        self._claimed[place] = run
        try:
            fate = await run.give(client, head, message.id, token)
        except BaseException:  # it left, with or without the result
            self._count(mcp.server, EarlyOutcome.CLAIMED)
            self._calls.claimed(run.call, early.asked)
            if early in self._under_way:
                self._under_way[early].cancel()
            raise
        finally:
            del self._claimed[place]
        if fate is Fate.NOT_MADE:
            self._count(mcp.server, EarlyOutcome.FAILED)
            return False
        self._count(mcp.server, EarlyOutcome.CLAIMED if fate is Fate.ANSWERED else EarlyOutcome.FAILED)
        self._calls.claimed(run.call, early.asked)
        return True

    def cancelled(self, mcp: McpSession, body: bytes, request_id: RequestId) -> bytes:
        run = self._claimed.get((mcp.server, mcp.tenant, mcp.id, request_id))
        if run is None:
            return body
        self._calls.over(run.call, Outcome.CANCELLED)
        try:
            return with_request_id(body, run.early.request_id)
        except (*UNREADABLE, KeyError):
            return body

    def called(self, mcp: McpSession, head: RequestHead, use: ToolUse) -> None:
        server = self._servers[mcp.server]
        if not server.config.early_tools:
            return
        if any(name.lower() in _OF_NEWER_REVISIONS for name, _ in head.headers):
            mcp.lines = b""
            return
        lines = head_lines(head, server.target(head), server.link, self._dropped)
        mcp.lines = lines + b"Accept-Encoding: identity\r\n" if len(lines) <= _MAX_LINES_BYTES else b""
        mcp.wants_progress, mcp.call_id_field = progress_token(use)[1] is not None, use.call_id_field

    def session_over(self, mcp: McpSession) -> None:
        for early in self._early.of_session(mcp):
            self._drop(early, EarlyOutcome.CANCELLED)

    # --- the time --------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """`now`: of the event loop. Called about once a second."""
        for run in (*self._runs.values(), *self._claimed.values()):
            upstream = run.upstream
            if upstream is not None and run.server.link.is_stalled(upstream, now=now):
                upstream.give_up_on_rest()
        clock_s = self._driver.clock()
        for early in list(self._early):
            keep_s = self._servers[early.mcp.server].config.early_keep_s
            if early.turn_over_s is not None and clock_s - early.turn_over_s > keep_s:
                self._drop(early, EarlyOutcome.UNCLAIMED)

    def close(self) -> None:
        for runner in (*self._under_way.values(), *self._telling):
            runner.cancel()

    def _count(self, server: str, outcome: EarlyOutcome) -> None:
        self._counts.early[server, outcome.value] += 1


def _chunks(mcp: McpSession, body: bytes) -> list[bytes]:
    return [b"%sContent-Length: %d\r\n\r\n%s" % (mcp.lines, len(body), body)]
