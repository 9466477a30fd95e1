"""MCP servers behind the gateway: `/mcp/NAME` is passed on to the server of that name, byte for byte.

What the gateway itself answers has the shape of a JSON-RPC error. A server's stream that breaks off breaks
off at the client, too, which may then resume it; a client that leaves closes the server's stream.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from gateway.core import refusals
from gateway.domain.request import Protocol
from gateway.mcp.answers import AnswerWatch
from gateway.mcp.calls import Call, Outcome
from gateway.mcp.messages import UNREAD, Kind, Message, cancelled_answer, cancelled_request, read_message
from gateway.mcp.sessions import McpSession
from gateway.server.http.client_connection import ClientConnection, Handler
from gateway.server.http.request_head import RequestHead
from gateway.server.http.request_parser import HttpRequest
from gateway.server.mcp.calls import McpCalls, NotAdmitted
from gateway.server.mcp.servers import McpServer, refusal_for
from gateway.server.proxy.byte_pump import framing_of
from gateway.server.proxy.upstream_request import head_lines
from gateway.server.runtime.tasks import check_each
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerCut, UpstreamError
from gateway.wire.headers import get_header
from gateway.wire.splice import Chunk

_log: Final = logging.getLogger(__name__)
_BODY: Final = frozenset(("POST", "PUT", "PATCH"))
_NOTHING: Final = Message(Kind.NOTIFICATION)


class Passage:
    """One answer on its way from a server to a client."""

    def __init__(
        self,
        client: ClientConnection,
        upstream: UpstreamConnection,
        watch: AnswerWatch,
        on_message: Callable[[Message], None],
    ) -> None:
        self._client = client
        self.upstream = upstream
        self._watch = watch
        self._on_message = on_message
        self._is_ended = False

    async def run(self) -> bool:
        client, upstream = self._client, self.upstream
        client.bind_source(upstream)
        try:
            upstream.set_sink(self._pump)
            client.flush_head()
            await upstream.done
        except AnswerCut:
            if self._is_ended:
                client.write([], is_last=True)
            else:
                client.abort()
            return False
        finally:
            client.bind_source(None)
        return True

    def _pump(self, parts: list[bytes], is_last: bool) -> None:
        self._client.write(parts, is_last)
        try:
            for message in self._watch.feed(b"".join(parts), is_last=is_last):
                self._on_message(message)
        except Exception:  # noqa: BLE001 - a bug of ours costs what we know of an answer, not the answer
            _log.exception("an MCP server's answer was not understood")

    def end(self) -> None:
        self._is_ended = True
        self.upstream.give_up_on_rest()


class McpProxy:
    """Called with every request; those that are not for a tool server go to `others`."""

    def __init__(
        self,
        servers: Mapping[str, McpServer],
        others: Handler,
        calls: McpCalls,
        *,
        dropped: frozenset[bytes],
    ) -> None:
        self.calls = calls
        self.servers = servers
        self._others = others
        self._dropped = dropped
        self._passages: set[Passage] = set()

    def __call__(self, client: ClientConnection, request: HttpRequest) -> Coroutine[Any, Any, None]:
        head = request.head
        if head.is_websocket or head.caller.endpoint.protocol is not Protocol.MCP:
            return self._others(client, request)
        return self._guarded(client, request)

    def sweep(self, now: float) -> None:
        """Gives up on servers that have fallen silent; called about once a second."""
        links = [server.link for server in self.servers.values()]
        check_each("tool server's connections", links, lambda link: link.sweep(now=now), lambda _: None)
        self.calls.sweep()

    def drain(self) -> None:
        for passage in tuple(self._passages):
            if passage.upstream.may_be_silent:
                passage.end()

    def close(self) -> None:
        for server in self.servers.values():
            server.link.close()

    async def _guarded(self, client: ClientConnection, request: HttpRequest) -> None:
        try:
            await self._serve(client, request)
        except Exception:  # noqa: BLE001 - a bug of ours costs one request, never the process
            _log.exception("a request for an MCP server failed inside the gateway")
            client.refuse_or_abort(Protocol.MCP, refusals.internal())

    async def _serve(self, client: ClientConnection, request: HttpRequest) -> None:
        head, calls = request.head, self.calls
        name, tenant = head.caller.endpoint.state_id, head.caller.tenant.id
        assert name is not None
        server = self.servers[name]
        session = McpSession(name, tenant, get_header(head.headers, b"mcp-session-id") or "")
        message = _NOTHING
        if request.body:
            message = read_message(request.body) if not head.facts.coding else UNREAD
        call: Call | None = None
        if message.may_call:
            call = calls.came(session, message)
        elif (cancelled := cancelled_request(message)) is not None:
            calls.cancelled(session, cancelled)
        try:
            if call is not None:
                await calls.admitted(call)
                calls.sent(call)
            upstream = await server.link.exchange(
                self._chunks(server, head, request.body),
                is_head_request=head.method == "HEAD",
                may_repeat=head.method in ("GET", "HEAD") or message.may_repeat,
            )
            await self._answer(server, client, request, upstream, session, call)
        except UpstreamError as error:
            if call is not None:
                calls.over(call, Outcome.UNREACHED)
            client.refuse(Protocol.MCP, refusal_for(error), request_id=message.id)
        except NotAdmitted as error:
            if error.refusal is None:
                client.respond(200, b"", cancelled_answer(message.id))
            else:
                client.refuse(Protocol.MCP, error.refusal, request_id=message.id)
        finally:
            if call is not None and not calls.is_suspended(call):
                calls.over(call, Outcome.LOST)

    async def _answer(
        self,
        server: McpServer,
        client: ClientConnection,
        request: HttpRequest,
        upstream: UpstreamConnection,
        session: McpSession,
        call: Call | None,
    ) -> None:
        request_head, head = request.head, upstream.head
        assert head is not None
        watch = AnswerWatch(head.content_type, head.content_encoding)
        is_whole = False
        passage = Passage(client, upstream, watch, partial(self.calls.observe, session, call))
        upstream.may_be_silent = request_head.method == "GET"  # its client only listens
        self._passages.add(passage)
        try:
            if upstream.has_sent_all:  # else the transport holds the body, and it still counts
                client.let_go_of_body()
            client.start_response(head.start, framing_of(head, request_head))
            if head.status == HTTPStatus.NOT_FOUND or request_head.method == "DELETE":
                self.calls.sessions.forget(session)
            is_whole = await passage.run()
        finally:
            self._passages.discard(passage)
            server.link.release(upstream, reuse=is_whole)
            if call is not None:
                self.calls.stream_ended(call, watch, status=head.status, is_whole=is_whole)

    def _chunks(self, server: McpServer, head: RequestHead, body: bytes) -> list[Chunk]:
        start = head.passed_on.get(server.link)
        if start is None:
            start = head_lines(head, server.target(head), server.link, self._dropped)
            head.passed_on[server.link] = start
        if body or head.method in _BODY:
            start += b"Content-Length: %d\r\n" % len(body)
        return [start + b"\r\n", body] if body else [start + b"\r\n"]
