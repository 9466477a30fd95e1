"""A server that answers as vLLM does, at once, and remembers what it was asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer


class Server:
    def __init__(self, *, refusals: int = 0, status: int = 503, takes_s: float = 0.0, names: bool = True):
        self.asked: list[dict[str, Any]] = []
        self.sessions: list[str] = []
        self.finals: list[bool] = []
        self._refusals, self._status, self._takes_s, self._names = refusals, status, takes_s, names

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self._refusals:
            self._refusals -= 1
            return web.Response(status=self._status, headers={"retry-after": "0.01"}, text="not you")
        body = await request.json()
        self.asked.append(body)
        self.sessions.append(request.headers["x-turnpike-session"])
        self.finals.append("x-turnpike-final" in request.headers)
        response = web.StreamResponse(headers={"x-turnpike-replica": "r", "x-turnpike-queue-ms": "7"})
        await response.prepare(request)
        await asyncio.sleep(self._takes_s)
        for token in range(body["max_tokens"]):
            choice: dict[str, Any] = {"text": "x"} | ({"token_ids": [1000 + token]} if self._names else {})
            await response.write(b"data: " + msgspec.json.encode({"choices": [choice]}) + b"\n\n")
        usage = {"completion_tokens": body["max_tokens"], "prompt_tokens_details": {"cached_tokens": 3}}
        await response.write(b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/completions", server.answer)
    async with TestServer(app) as listening:
        yield f"http://127.0.0.1:{listening.port}"
