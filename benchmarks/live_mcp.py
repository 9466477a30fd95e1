"""What calls that begin while the answer goes on save: from an answer's last token to the next request.

    python -m benchmarks.live_mcp [--quick] [--json]

A gateway as a user starts it, a model that streams, an MCP server whose tools take their time, and an agent
that makes three calls that only read, side by side. The model's answer asks for them and then goes on for a
while. The agent waits for its end, as most frameworks do (`waits`), or begins each call when it has seen it,
as Claude Code and Codex do (`begins`); the gateway calls early, or not.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from benchmarks.command import judged
from benchmarks.gateway import gateway
from benchmarks.verdict import Verdict

MODEL: Final = "m"
TOOL_S: Final = 1.0
CALLS: Final = 3
GOES_ON_S: Final = (0.0, 0.4, 1.5)
"""Behind its calls."""
_TOKEN_S: Final = 0.02
_SLACK_S: Final = 0.15
_HEADERS: Final = {"Accept": "application/json, text/event-stream"}


class World:
    """The model and the MCP server."""

    def __init__(self) -> None:
        self.goes_on_s = 0.0
        self.calls = 0
        """That the MCP server got."""
        self.came_s = 0.0
        """When the last request for the model came."""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", _ok)
        app.router.add_get("/version", _version)
        app.router.add_get("/v1/models", _models)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/mcp", self._mcp)
        return app

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.came_s = time.monotonic()
        asked = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        calls = asked["messages"][-1].get("wants", [])
        for index, call in enumerate(calls):
            await _say(response, {"tool_calls": [{"index": index, **call}]})
            await asyncio.sleep(_TOKEN_S)
        until_s = time.monotonic() + (self.goes_on_s if calls else 0.0)
        while time.monotonic() < until_s:
            await _say(response, {"content": "word "})
            await asyncio.sleep(min(_TOKEN_S, max(0.0, until_s - time.monotonic())))
        await _say(response, {}, "tool_calls" if calls else "stop")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _mcp(self, request: web.Request) -> web.Response:
        message = await request.json()
        result: dict[str, Any] = {}
        match message["method"]:
            case "initialize":
                result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
                result["serverInfo"] = {"name": "slow", "version": "1"}
            case "tools/list":
                hints = {"readOnlyHint": True}
                result = {
                    "tools": [{"name": "look", "inputSchema": {"type": "object"}, "annotations": hints}]
                }
            case "tools/call":
                self.calls += 1
                await asyncio.sleep(TOOL_S)
                result = {"content": [{"type": "text", "text": json.dumps(message["params"]["arguments"])}]}
            case _:
                return web.Response(status=202)
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return web.json_response(answer, headers={"Mcp-Session-Id": "the-only-one"})


async def _ok(request: web.Request) -> web.Response:
    return web.Response()


async def _version(request: web.Request) -> web.Response:
    return web.json_response({"version": "0.32.0"})


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})


async def _say(response: web.StreamResponse, delta: dict[str, Any], finish: str | None = None) -> None:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")


class ScriptedAgent:
    def __init__(self, url: str, world: World, http: aiohttp.ClientSession, *, begins: bool) -> None:
        """`begins`: it begins a call when it has seen it, and does not wait for the answer's end."""
        self._url = url
        self._world = world
        self._http = http
        self._begins = begins
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": f"look {id(self)}"}]
        self._numbers = 0

    async def connect(self) -> None:
        version = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "a", "version": "1"},
        }
        await self._tell("initialize", version)
        await self._tell("tools/list", {})
        await self.step(1)  # by which its MCP session is known

    async def step(self, count: int) -> float:
        """Seconds from the last token of an answer that asks for so many calls to the next request."""
        wants = []
        for _ in range(count):
            self._numbers += 1
            function = {"name": "mcp__slow__look", "arguments": json.dumps({"n": self._numbers})}
            wants.append({"id": f"call_{id(self)}x{self._numbers}", "type": "function", "function": function})
        self._messages.append({"role": "user", "content": "go on", "wants": wants})
        begun: list[asyncio.Future[str]] = []
        seen = 0
        async for delta in self._answer():
            seen += len(delta.get("tool_calls", ()))
            while self._begins and len(begun) < seen:
                begun.append(asyncio.ensure_future(self._call(wants[len(begun)])))
        ended_s = time.monotonic()
        begun += [asyncio.ensure_future(self._call(want)) for want in wants[len(begun) :]]
        results = await asyncio.gather(*begun)
        self._messages.append({"role": "assistant", "content": None, "tool_calls": wants})
        for want, text in zip(wants, results, strict=True):
            self._messages.append({"role": "tool", "tool_call_id": want["id"], "content": text})
        async for _ in self._answer():
            pass
        self._messages.append({"role": "assistant", "content": ""})
        return self._world.came_s - ended_s

    async def _answer(self) -> Any:
        body = {"model": MODEL, "messages": self._messages, "stream": True}
        async with self._http.post(f"{self._url}/v1/chat/completions", json=body) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])["choices"][0]["delta"]

    async def _call(self, want: dict[str, Any]) -> str:
        arguments = json.loads(want["function"]["arguments"])
        told = await self._tell("tools/call", {"name": "look", "arguments": arguments})
        text: str = told["result"]["content"][0]["text"]
        return text

    async def _tell(self, method: str, params: dict[str, Any]) -> Any:
        self._numbers += 1
        body = {"jsonrpc": "2.0", "id": self._numbers, "method": method, "params": params}
        headers = _HEADERS if method == "initialize" else {**_HEADERS, "Mcp-Session-Id": "the-only-one"}
        async with self._http.post(f"{self._url}/mcp/slow", json=body, headers=headers) as response:
            return await response.json()


async def gaps(world: World, url: str, rounds: int, goes_on_s: float, *, begins: bool) -> list[float]:
    """Of so many answers."""
    async with aiohttp.ClientSession() as http:
        agent = ScriptedAgent(url, world, http, begins=begins)
        world.goes_on_s = 0.0
        await agent.connect()
        world.goes_on_s = goes_on_s
        return [await agent.step(CALLS) for _ in range(rounds)]


def measure(rounds: int, verdict: Verdict, tell: Any) -> None:
    asyncio.run(_measure(rounds, verdict, tell))


async def _measure(rounds: int, verdict: Verdict, tell: Any) -> None:
    world = World()
    runner = web.AppRunner(world.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    servers = f"http://127.0.0.1:{runner.addresses[0][1]}"
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        try:
            for name, early in (("off", "[]"), ("on", '["look"]')):
                settings = f'[[mcp]]\nname = "slow"\nurl = "{servers}/mcp"\nearly_tools = {early}\n'
                starting = gateway([servers], Path(directory) / name, settings)
                url = await asyncio.to_thread(stack.enter_context, starting)
                for begins in (False, True):
                    for goes_on_s in GOES_ON_S:
                        before = world.calls
                        found = await gaps(world, url, rounds, goes_on_s, begins=begins)
                        made = (world.calls - before - 1) / (rounds * CALLS)
                        agent = "begins" if begins else "waits"
                        key = f"{agent}.{goes_on_s:g}s.{name}"
                        gap_s = statistics.median(found)
                        tell(
                            f"{key}: {gap_s:.3f} s ({min(found):.3f} to {max(found):.3f}), calls: {made:.2f}"
                        )
                        least_s = max(0.0, TOOL_S - goes_on_s) if begins or name == "on" else TOOL_S
                        verdict.at_most(f"{key}.gap_s", gap_s, least_s + _SLACK_S)
                        verdict.at_most(f"{key}.calls_made_for_each", made, 1.0)
        finally:
            await asyncio.to_thread(stack.close)
            await runner.cleanup()


def main(argv: list[str] | None = None) -> int:
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(3 if is_quick else 12, verdict, tell),
        quick="3 answers instead of 12",
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
