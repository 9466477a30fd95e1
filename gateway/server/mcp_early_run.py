"""One early call on the wire: made, held, and handed to the client that asks for it."""

import logging
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from gateway.domain.decision import Refusal
from gateway.domain.request import Protocol
from gateway.domain.words import Word
from gateway.mcp.calls import Call, Outcome, outcome_of
from gateway.mcp.early import EarlyCall
from gateway.mcp.early_answer import EarlyAnswer
from gateway.mcp.messages import MAX_READ_BYTES, Kind, RequestId, read_message
from gateway.server.connection import ClientConnection
from gateway.server.mcp_calls import McpCalls
from gateway.server.mcp_servers import McpServer, refusal_for
from gateway.server.request_head import RequestHead
from gateway.server.response_writer import Framing
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerCut, AnswerMissing, UpstreamError
from gateway.upstream.moments import Moment
from gateway.wire.body import UNREADABLE
from gateway.wire.sse import event_data

_log: Final = logging.getLogger(__name__)


class Fate(Word):
    """Of an early call that a client has claimed."""

    ANSWERED = "answered"
    NOT_MADE = "not_made"
    """The server did not take it: the client's own call goes its way."""
    BROKEN = "broken"


class _Claimant(msgspec.Struct, eq=False):
    client: ClientConnection
    head: RequestHead
    request_id: RequestId | None
    token: Raw | None
    fate_came: Moment
    has_begun: bool = False


class EarlyRun:
    """One early call on its way."""

    def __init__(
        self,
        early: EarlyCall,
        call: Call,
        server: McpServer,
        calls: McpCalls,
        call_soon: Callable[..., object],
        on_oversized: Callable[[EarlyCall], None],
    ) -> None:
        self.early = early
        self.call = call
        self.server = server
        self.upstream: UpstreamConnection | None = None
        self.fate: Fate | None = None
        self._refusal: Refusal | None = None
        self._calls = calls
        self._call_soon = call_soon
        self._on_oversized = on_oversized
        self._answer: EarlyAnswer | None = None
        self._start = b""
        self._held: list[bytes] = []
        self._claimant: _Claimant | None = None

    # --- the server's side -----------------------------------------------------------------------

    async def run(self, chunks: list[bytes], max_bytes: int) -> None:
        try:
            self.fate = await self._exchange(chunks, max_bytes)
        except Exception:  # noqa: BLE001 - a bug of ours costs one early call
            _log.exception("an early call failed inside the gateway")
            self.fate = Fate.BROKEN
        finally:
            if self.fate is None:
                self.fate = Fate.BROKEN
            self._calls.over(self.call, Outcome.UNREACHED if self._answer is None else Outcome.LOST)
            self._deliver()

    async def _exchange(self, chunks: list[bytes], max_bytes: int) -> Fate:
        try:
            upstream = await self.server.link.exchange(list(chunks), is_head_request=False, may_repeat=False)
        except UpstreamError as error:
            self._refusal = refusal_for(error)
            return Fate.BROKEN if isinstance(error, AnswerMissing) else Fate.NOT_MADE
        is_whole = False
        try:
            head = upstream.head
            assert head is not None
            if 400 <= head.status < 500:
                self._calls.over(self.call, Outcome.ERROR)
                return Fate.NOT_MADE
            answer = EarlyAnswer(self.early.request_id, head.content_type)
            if head.status != 200 or head.content_encoding is not None or not answer.is_readable:
                self._calls.over(self.call, Outcome.ERROR)
                return Fate.BROKEN
            self.upstream, self._answer, self._start = upstream, answer, _without_length(head.start)
            if self._claimant is not None:
                self._claimant.client.follow(upstream)
            self._deliver()

            def take(parts: list[bytes], is_last: bool) -> None:
                self._take(b"".join(parts), is_last=is_last, max_bytes=max_bytes)

            upstream.set_sink(take)
            await upstream.done
            is_whole = True
        except AnswerCut:
            pass
        finally:
            self.upstream = None
            if self._claimant is not None:
                self._claimant.client.follow(None)
            self.server.link.release(upstream, reuse=is_whole)
        is_over = self.call.has_result or (is_whole and self.call.outcome is Outcome.CANCELLED)
        return Fate.ANSWERED if is_over else Fate.BROKEN

    def _take(self, chunk: bytes, *, is_last: bool, max_bytes: int) -> None:
        answer = self._answer
        assert answer is not None
        for part in answer.feed(chunk, is_last=is_last):
            self._held.append(part)
            message = read_message(event_data(part) if answer.is_stream else part)
            if message.kind is Kind.ANSWER and message.id == self.early.request_id:
                self._calls.over(self.call, outcome_of(message), result_bytes=len(message.result))
        is_too_much = answer.held_bytes > max_bytes and self._claimant is None
        if is_too_much or answer.is_stopped or (not answer.is_stream and answer.held_bytes > MAX_READ_BYTES):
            self._call_soon(self._on_oversized, self.early)
        self._deliver()

    # --- the client's side -----------------------------------------------------------------------

    async def give(
        self, client: ClientConnection, head: RequestHead, request_id: RequestId | None, token: Raw | None
    ) -> Fate:
        """Answers the client's own call with this. After `NOT_MADE` nothing was answered."""
        self._claimant = claimant = _Claimant(client, head, request_id, token, Moment())
        if self.upstream is not None:
            client.follow(self.upstream)
        self._deliver()
        try:
            await claimant.fate_came
        finally:
            client.follow(None)
            self._claimant = None
        assert self.fate is not None
        if self.fate is Fate.BROKEN:
            if claimant.has_begun:
                client.abort()
            else:
                refusal = self._refusal or refusal_for(AnswerMissing("it broke off"))
                client.refuse(Protocol.MCP, refusal, request_id=request_id)
        return self.fate

    def _deliver(self) -> None:
        claimant, answer = self._claimant, self._answer
        if claimant is None:
            return
        if answer is not None and (answer.is_stream or self.fate is Fate.ANSWERED):
            try:
                self._write(claimant, answer)
            except UNREADABLE:
                self.fate = Fate.BROKEN
        if self.fate is not None:
            self._call_soon(claimant.fate_came.come)

    def _write(self, claimant: _Claimant, answer: EarlyAnswer) -> None:
        client, is_last = claimant.client, self.fate is Fate.ANSWERED
        parts = [answer.for_client(part, claimant.request_id, claimant.token) for part in self._held]
        self._held.clear()
        body = [part for part in parts if part]
        if not claimant.has_begun:
            head, claimant.has_begun = self._start, True
            if answer.is_stream:
                client.start_response(head, Framing.CLOSE if claimant.head.is_http_1_0 else Framing.CHUNKED)
            else:
                length = b"Content-Length: %d\r\n" % sum(map(len, body))
                client.start_response(head + length, Framing.LENGTH)
        client.write(body, is_last)
        client.flush_head()


def _without_length(start: bytes) -> bytes:
    lines = start.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(b"content-length:"))
