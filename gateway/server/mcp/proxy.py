"""MCP servers behind the gateway: `/mcp/NAME` is passed on to the server of that name, byte for byte.

What the gateway itself answers has the shape of a JSON-RPC error. A server's stream that breaks off breaks
off at the client, too, which may then resume it; a client that leaves closes the server's stream.
"""

import logging
from collections.abc import Coroutine, Mapping
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
        # Answers on their way from a server to a client.
        self._passages: set[UpstreamConnection] = set()

    def __call__(self, client: ClientConnection, request: HttpRequest) -> Coroutine[Any, Any, None]:
        head = request.head
        if head.is_websocket or head.caller.endpoint.protocol is not Protocol.MCP:
            return self._others(client, request)
        return self._guarded(client, request)

    def sweep(self, now: float) -> None:
        """Gives up on servers that have fallen silent; called about once a second."""
        links = [server.link for server in self.servers.values()]
        check_each("tool server's connections", links, lambda link: link.sweep(now=now))
        self.calls.sweep()

    def drain(self) -> None:
        for upstream in [each for each in self._passages if each.may_be_silent]:
            self._passages.remove(upstream)
            upstream.give_up_on_rest()

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

        def pump(parts: list[bytes], is_last: bool) -> None:
            client.write(parts, is_last)
            try:
                for message in watch.feed(b"".join(parts), is_last=is_last):
                    self.calls.observe(session, call, message)
            except Exception:  # noqa: BLE001 - a bug of ours costs what we know of an answer, not the answer
                _log.exception("an MCP server's answer was not understood")

        is_whole = False
        upstream.may_be_silent = request_head.method == "GET"  # its client only listens
        self._passages.add(upstream)
        try:
            if upstream.has_sent_all:  # else the transport holds the body, and it still counts
                client.let_go_of_body()
            client.start_response(head.start, framing_of(head, request_head))
            if head.status == HTTPStatus.NOT_FOUND or request_head.method == "DELETE":
                self.calls.sessions.forget(session)
            client.bind_source(upstream)
            upstream.set_sink(pump)
            client.flush_head()
            await upstream.done
            is_whole = True
        except AnswerCut:
            if upstream in self._passages:
                client.abort()
            else:  # by `drain`
                client.write([], is_last=True)
        finally:
            client.bind_source(None)
            self._passages.discard(upstream)
            server.link.release(upstream, reuse=is_whole)
            if call is not None:
                self.calls.stream_ended(call, watch, status=head.status, is_whole=is_whole)

    def _chunks(self, server: McpServer, head: RequestHead, body: bytes) -> list[Chunk]:
        start = head.passed_on.get(server.link)
        if start is None:
            _, mark, query = head.target.partition(b"?")
            start = head_lines(head, server.path + mark + query, server.link, self._dropped)
            head.passed_on[server.link] = start
        if body or head.method in _BODY:
            start += b"Content-Length: %d\r\n" % len(body)
        return [start + b"\r\n", body] if body else [start + b"\r\n"]
