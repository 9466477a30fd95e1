"""MCP servers behind the gateway: `/mcp/NAME` is passed on to the server of that name, byte for byte.

What the gateway itself answers has the shape of a JSON-RPC error. A server's stream that breaks off breaks
off at the client, too, which may then resume it; a client that leaves closes the server's stream.
"""

import logging
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gateway.config import Config
from gateway.config.load import read_api_key
from gateway.config.mcp import McpServerConfig
from gateway.core import refusals
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.request import Protocol
from gateway.mcp.answers import AnswerWatch
from gateway.mcp.calls import Call, Outcome
from gateway.mcp.messages import UNREAD, Kind, Message, cancelled_answer, read_message
from gateway.server.connection import ClientConnection, Handler
from gateway.server.mcp_calls import McpCalls, NotAdmitted
from gateway.server.outbound import head_lines
from gateway.server.relay import framing_of
from gateway.server.request_head import RequestHead
from gateway.server.request_parser import HttpRequest
from gateway.server.tasks import check_each
from gateway.server.tenants import CREDENTIAL_HEADERS
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerCut, AnswerTimedOut, ConnectFailed, LocalFault, UpstreamError
from gateway.upstream.local_faults import LocalFaults
from gateway.upstream.replica import Address, Replica
from gateway.wire.headers import get_header
from gateway.wire.splice import Chunk

_log: Final = logging.getLogger(__name__)
_BODY: Final = frozenset(("POST", "PUT", "PATCH"))
_NOTHING: Final = Message(Kind.NOTIFICATION)
"""Of a request without a body."""


class McpServer:
    """A tool server: its address, and connections to it."""

    def __init__(
        self,
        config: McpServerConfig,
        gateway: Config,
        *,
        api_key: str | None,
        tls: ssl.SSLContext | None,
        local_faults: LocalFaults,
    ) -> None:
        """Raises ValueError if its URL is none."""
        self.name = config.name
        self.config = config
        address = Address.parse(config.url)
        # As it is written: servers tell `/mcp` and `/mcp/` apart.
        self.path = (urlsplit(config.url).path or "/").encode("ascii")
        patience = msgspec.structs.replace(
            gateway.upstream, head_timeout_s=config.silence_s, stall_timeout_s=config.silence_s
        )
        self.link = Replica(
            ReplicaId(f"mcp:{config.name}"),
            PoolId("mcp"),
            address,
            config=patience,
            api_key=api_key,
            tls=tls if address.is_tls else None,
            local_faults=local_faults,
            keepalive_s=gateway.server.limits.tcp_keepalive_s,
        )

    def target(self, head: RequestHead) -> bytes:
        """What to ask it for: its own path, with the client's query."""
        _, mark, query = head.target.partition(b"?")
        return self.path + mark + query


class Passage:
    """One answer on its way from a server to a client."""

    def __init__(
        self,
        client: ClientConnection,
        upstream: UpstreamConnection,
        watch: AnswerWatch,
        on_message: Callable[[Message], None],
        *,
        listens: bool,
    ) -> None:
        """`listens`: the client waits for nothing in particular, so the server may be silent."""
        self._client = client
        self.upstream = upstream
        self._watch = watch
        self._on_message = on_message
        self.listens = listens
        self._is_ended = False

    @property
    def is_waiting_for_server(self) -> bool:
        return not self.listens and not self._client.is_paused and not self.upstream.done.has_come

    async def run(self) -> bool:
        """Whether the server's connection is fit for reuse."""
        client, upstream = self._client, self.upstream
        client.follow(upstream)
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
            client.follow(None)
        return True

    def _pump(self, parts: list[bytes], is_last: bool) -> None:
        self._client.write(parts, is_last)
        for message in self._watch.feed(b"".join(parts), is_last=is_last):
            self._on_message(message)

    def end(self) -> None:
        """The stream ends here, as servers may end it; the client will open another one."""
        self._is_ended = True
        self.upstream.give_up_on_rest()


class McpProxy:
    """Called with every request; those that are not for a tool server go to `others`."""

    def __init__(
        self, servers: Iterable[McpServer], others: Handler, calls: McpCalls, *, are_keys_required: bool
    ) -> None:
        self.calls = calls
        self.servers: Mapping[str, McpServer] = {server.name: server for server in servers}
        self._others = others
        self._dropped: frozenset[bytes] = CREDENTIAL_HEADERS if are_keys_required else frozenset()
        self._passages: dict[Passage, McpServer] = {}

    def __call__(self, client: ClientConnection, request: HttpRequest) -> Coroutine[Any, Any, None]:
        if request.head.visitor.endpoint.protocol is not Protocol.MCP:
            return self._others(client, request)
        return self._guarded(client, request)

    def sweep(self, now: float) -> None:
        """Gives up on servers that have fallen silent; called about once a second."""

        def check(item: tuple[Passage, McpServer]) -> None:
            passage, server = item
            if passage.is_waiting_for_server and server.link.is_stalled(passage.upstream, now=now):
                passage.upstream.give_up_on_rest()

        def cut(item: tuple[Passage, McpServer]) -> None:
            item[0].upstream.give_up_on_rest()

        check_each("MCP stream", self._passages.items(), check, cut)
        for server in self.servers.values():
            server.link.sweep(now=now)
        self.calls.sweep()

    def drain(self) -> None:
        """Ends the streams that clients only listen to: they would never end."""
        for passage in tuple(self._passages):
            if passage.listens:
                passage.end()

    def close(self) -> None:
        for server in self.servers.values():
            server.link.close()

    @property
    def passing(self) -> int:
        """Answers that are on their way."""
        return len(self._passages)

    async def _guarded(self, client: ClientConnection, request: HttpRequest) -> None:
        try:
            await self._serve(client, request)
        except Exception:  # noqa: BLE001 - a bug of ours costs one request, never the process
            _log.exception("a request for an MCP server failed inside the gateway")
            if client.is_answering:
                client.abort()
            else:
                client.refuse(Protocol.MCP, refusals.internal())

    async def _serve(self, client: ClientConnection, request: HttpRequest) -> None:
        head, calls = request.head, self.calls
        name, tenant = head.visitor.endpoint.state_id, head.visitor.tenant.id
        assert name is not None
        server = self.servers[name]
        mcp_session = get_header(head.headers, b"mcp-session-id") or ""
        message = _NOTHING
        if request.body:
            message = read_message(request.body) if not head.facts.coding else UNREAD
        call: Call | None = None
        if message.may_call:
            call = calls.came(name, tenant, mcp_session, message)
        else:
            calls.told(name, tenant, mcp_session, message)
        try:
            if call is not None:
                await calls.admitted(call)
            upstream = await self._exchange(server, request, message, call)
            if isinstance(upstream, Refusal):
                client.refuse(Protocol.MCP, upstream, request_id=message.id)
            else:
                await self._answer(server, client, request, upstream, mcp_session, call)
        except NotAdmitted as error:
            if error.refusal is None:
                client.respond(200, b"", cancelled_answer(message.id))
            else:
                client.refuse(Protocol.MCP, error.refusal, request_id=message.id)
        finally:
            if call is not None and not calls.is_suspended(call):
                calls.over(call, Outcome.LOST)

    async def _exchange(
        self, server: McpServer, request: HttpRequest, message: Message, call: Call | None
    ) -> UpstreamConnection | Refusal:
        head = request.head
        if call is not None:
            self.calls.sent(call)
        try:
            return await server.link.exchange(
                self._chunks(server, request),
                is_head_request=head.method == "HEAD",
                may_repeat=head.method in ("GET", "HEAD") or message.may_repeat,
            )
        except UpstreamError as error:
            if call is not None:
                self.calls.over(call, Outcome.UNREACHED)
            return _refusal(error)

    async def _answer(
        self,
        server: McpServer,
        client: ClientConnection,
        request: HttpRequest,
        upstream: UpstreamConnection,
        mcp_session: str,
        call: Call | None,
    ) -> None:
        request_head, head = request.head, upstream.head
        assert head is not None
        watch = AnswerWatch(head.content_type, head.content_encoding)
        tenant, is_whole = request_head.visitor.tenant.id, False
        try:
            if upstream.has_sent_all:  # else the transport holds the body, and it still counts
                client.let_go_of_body()
            client.start_response(head.start, framing_of(head, request_head))
            heard = partial(self.calls.heard, server.name, tenant, mcp_session, call=call)
            passage = Passage(client, upstream, watch, heard, listens=request_head.method == "GET")
            is_whole = await self._pass(passage, server)
        finally:
            server.link.release(upstream, reuse=is_whole)
            if call is not None:
                self.calls.stream_ended(call, watch, status=head.status, is_whole=is_whole)

    async def _pass(self, passage: Passage, server: McpServer) -> bool:
        self._passages[passage] = server
        try:
            return await passage.run()
        finally:
            del self._passages[passage]

    def _chunks(self, server: McpServer, request: HttpRequest) -> list[Chunk]:
        head, body = request.head, request.body
        start = head.passed_on.get(server.link)
        if start is None:
            start = head_lines(head, server.target(head), server.link, self._dropped)
            head.passed_on[server.link] = start
        if body or head.method in _BODY:
            start += b"Content-Length: %d\r\n" % len(body)
        return [start + b"\r\n", body] if body else [start + b"\r\n"]


def open_servers(
    config: Config,
    environ: Mapping[str, str],
    *,
    tls: ssl.SSLContext | None,
    local_faults: LocalFaults,
) -> list[McpServer]:
    """Raises ConfigError or ValueError for what the settings point to."""
    return [
        McpServer(
            each,
            config,
            api_key=read_api_key(each.api_key_env, each.api_key_file, environ),
            tls=tls,
            local_faults=local_faults,
        )
        for each in config.mcp
    ]


def _refusal(error: UpstreamError) -> Refusal:
    if isinstance(error, LocalFault):
        message = "The gateway cannot open connections at the moment; the request may be sent again."
        return Refusal(reason=RefusalReason.LOCAL_FAULT, message=message, retry_after_s=2)
    if isinstance(error, ConnectFailed):
        reason, what = RefusalReason.UPSTREAM_UNREACHABLE, "could not be reached"
    elif isinstance(error, AnswerTimedOut):
        reason, what = RefusalReason.UPSTREAM_TIMEOUT, "did not answer in time"
    else:
        reason, what = RefusalReason.UPSTREAM_BROKEN, "failed before it answered"
    return Refusal(reason=reason, message=f"The MCP server {what}.")
