"""The proxy in front of one agent run: it knows who sent a request, and notes what the gateway made of it.

Without a gateway it is the load balancer's place: then each request has its own server.

Every run has a listener of its own, so the truth never depends on what a request says. Requests and
responses pass byte for byte, streams as they come; only where the run's identity is to be hidden are
some headers and body fields left out. A response that breaks off breaks off for the agent too.
"""

import json
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict, MultiMapping
from yarl import URL

from demo.balancer import Choose
from demo.identity import strip_body, strip_headers

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"})
NEVER_ADD = (hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE)


@dataclass(kw_only=True)
class Exchange:
    """One request of the run, and its receipt."""

    method: str
    path: str
    offers_tools: bool
    """Whether it is a turn of the agent; side requests, such as a title, offer none."""
    taken: list[str] = field(default_factory=list)
    """Headers and body fields that were left out."""
    sent_at_s: float = 0.0
    answered_at_s: float | None = None
    """When the last byte of the answer came; None when it did not."""
    status: int | None = None
    session: str | None = None
    source: str | None = None
    replica: str | None = None
    queue_ms: float = 0.0


class Hop:
    """A listener on a free local port in front of `upstream`; an async context manager."""

    def __init__(self, upstream: str | Choose, *, strip: bool) -> None:
        """`upstream`: a URL, or what chooses one for each request."""
        self._choose: Choose = upstream if callable(upstream) else lambda _: upstream
        self._strip = strip
        self.exchanges: list[Exchange] = []
        self.base_url = ""

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.base_url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._client.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        exchange = Exchange(method=request.method, path=request.path, offers_tools=_offers_tools(body))
        headers = _end_to_end(request.headers)
        if self._strip:
            exchange.taken = strip_headers(headers)
            for name in exchange.taken:
                headers.popall(name)
            body, fields = strip_body(body)
            exchange.taken += fields
            if body and hdrs.CONTENT_LENGTH in headers:
                headers[hdrs.CONTENT_LENGTH] = str(len(body))
        upstream = self._choose(headers).rstrip("/")
        headers[hdrs.HOST] = URL(upstream).authority
        self.exchanges.append(exchange)
        return await self._forward(request, upstream, exchange, headers, body)

    async def _forward(
        self,
        request: web.Request,
        upstream: str,
        exchange: Exchange,
        headers: CIMultiDict[str],
        body: bytes,
    ) -> web.StreamResponse:
        exchange.sent_at_s = time.time()
        try:
            answer = await self._client.request(
                request.method,
                URL(upstream + request.raw_path, encoded=True),
                headers=headers,
                data=body or None,
                skip_auto_headers=NEVER_ADD,
                allow_redirects=False,
            )
        except aiohttp.ClientError as error:
            return web.Response(status=502, text=f"demo hop: {upstream} did not answer: {error}")
        async with answer:
            _read_receipt(exchange, answer)
            reply = web.StreamResponse(
                status=answer.status, reason=answer.reason, headers=_end_to_end(answer.headers)
            )
            await reply.prepare(request)
            await self._relay(request, exchange, answer, reply)
        return reply

    async def _relay(
        self,
        request: web.Request,
        exchange: Exchange,
        answer: aiohttp.ClientResponse,
        reply: web.StreamResponse,
    ) -> None:
        last_byte_at_s = time.time()
        try:
            async for chunk in answer.content.iter_any():
                last_byte_at_s = time.time()
                await reply.write(chunk)
            exchange.answered_at_s = last_byte_at_s
            await reply.write_eof()
        except aiohttp.ClientConnectionResetError:
            pass  # The agent left, as some do before the end of a stream; the upstream side closes with it.
        except aiohttp.ClientError:
            if request.transport is not None:
                request.transport.abort()


def _end_to_end(headers: MultiMapping[str]) -> CIMultiDict[str]:
    kept = CIMultiDict(headers)
    for name in HOP_BY_HOP:
        kept.popall(name, None)
    return kept


def _offers_tools(body: bytes) -> bool:
    try:
        message = json.loads(body)
    except ValueError:
        return False
    return isinstance(message, dict) and bool(message.get("tools"))


def _read_receipt(exchange: Exchange, answer: aiohttp.ClientResponse) -> None:
    exchange.status = answer.status
    exchange.session = answer.headers.get("x-turnpike-session")
    exchange.source = answer.headers.get("x-turnpike-source")
    exchange.replica = answer.headers.get("x-turnpike-replica")
    exchange.queue_ms = float(answer.headers.get("x-turnpike-queue-ms", 0))
