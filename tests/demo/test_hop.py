"""The hop: bytes pass as they are, receipts are kept, a broken answer stays broken."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from demo.hop import Hop

BODY = b'{ "messages": [], "tools": [1], "session_id": "mine" }'
EVENTS = [b"data: 1\n\n", b"data: 2\n\n"]
RECEIPT = {"x-turnpike-session": "s-1", "x-turnpike-source": "call-id", "x-turnpike-queue-ms": "1.5"}


class Upstream:
    """Answers with two events, the second only when told to go on."""

    def __init__(self):
        self.requests = []
        self.go_on = asyncio.Event()
        self.breaks_off = False

    async def handle(self, request):
        self.requests.append((request.method, request.raw_path, dict(request.headers), await request.read()))
        reply = web.StreamResponse(headers={"content-type": "text/event-stream", **RECEIPT})
        await reply.prepare(request)
        if request.method == "HEAD":
            return reply
        await reply.write(EVENTS[0])
        await self.go_on.wait()
        if self.breaks_off:
            request.transport.abort()
            return reply
        await reply.write(EVENTS[1])
        return reply

    @asynccontextmanager
    async def serving(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        async with TestServer(app) as listening:
            yield f"http://127.0.0.1:{listening.port}"


@pytest.fixture
async def upstream():
    return Upstream()


@pytest.fixture
async def client():
    async with aiohttp.ClientSession() as session:
        yield session


async def test_a_stream_passes_as_it_comes_and_its_receipt_is_kept(upstream, client):
    async with upstream.serving() as url, Hop(url, strip=False) as hop:
        headers = {"Session-Id": "mine", "Content-Type": "application/json"}
        async with client.post(f"{hop.base_url}/v1/x%2Fy?beta=true", data=BODY, headers=headers) as answer:
            assert await answer.content.readany() == EVENTS[0]
            upstream.go_on.set()
            assert await answer.content.read() == EVENTS[1]
    [(method, path, sent, body)] = upstream.requests
    assert (method, path, body) == ("POST", "/v1/x%2Fy?beta=true", BODY)
    assert sent["Session-Id"] == "mine"
    assert sent["Host"] == url.removeprefix("http://")
    [exchange] = hop.exchanges
    assert (exchange.session, exchange.source, exchange.queue_ms) == ("s-1", "call-id", 1.5)
    assert (exchange.offers_tools, exchange.status, exchange.taken) == (True, 200, [])
    assert exchange.answered_at_s is not None


async def test_a_stripping_hop_takes_identity_out_and_says_what_it_took(upstream, client):
    upstream.go_on.set()
    async with upstream.serving() as url, Hop(url, strip=True) as hop:
        headers = {"Session-Id": "mine", "Content-Type": "application/json"}
        async with client.post(f"{hop.base_url}/v1/chat/completions", data=BODY, headers=headers) as answer:
            assert await answer.read() == b"".join(EVENTS)
    [(_, _, sent, body)] = upstream.requests
    assert "Session-Id" not in sent
    assert json.loads(body) == {"messages": [], "tools": [1]}
    assert hop.exchanges[0].taken == ["session-id", "session_id"]


async def test_an_answer_that_breaks_off_breaks_off_for_the_agent_too(upstream, client):
    upstream.breaks_off = True
    async with upstream.serving() as url, Hop(url, strip=False) as hop:
        answer = await client.post(f"{hop.base_url}/v1/responses", data=BODY)
        assert await answer.content.readany() == EVENTS[0]
        upstream.go_on.set()
        with pytest.raises(aiohttp.ClientError):
            await answer.content.read()
        answer.close()
    assert hop.exchanges[0].answered_at_s is None


async def test_an_agent_that_leaves_takes_the_request_with_it(upstream, client):
    async with upstream.serving() as url, Hop(url, strip=False) as hop:
        answer = await client.post(f"{hop.base_url}/v1/responses", data=BODY)
        await answer.content.readany()
        answer.close()
        upstream.go_on.set()
    assert hop.exchanges[0].answered_at_s is None
