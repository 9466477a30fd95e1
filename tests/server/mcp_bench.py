"""An MCP server on a raw socket behind a gateway, and what a client says to it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.server.bench import Backend, Bench, answer, get, post, sends

PATH = b"/mcp/tools"
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nMcp-Session-Id: s1\r\n"
STREAM = SSE_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def rpc(method: str, request_id: Any = 1, **params: Any) -> bytes:
    """A request; a notification if its id is None."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message if request_id is None else message | {"id": request_id}).encode()


def call(tool: str = "read", request_id: Any = 1, meta: Any = None, **arguments: Any) -> bytes:
    more = {"_meta": meta} if meta is not None else {}
    return rpc("tools/call", request_id, name=tool, arguments=arguments, **more)


def result(request_id: Any = 1, text: str = "done", **more: Any) -> bytes:
    content = [{"type": "text", "text": text}]
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "result": {"content": content, **more}}).encode()


def answers(body: bytes) -> bytes:
    return answer(body, headers=b"Mcp-Session-Id: s1\r\n")


def event(data: bytes, event_id: str = "") -> bytes:
    lines = f"id: {event_id}\n".encode() if event_id else b""
    return lines + b"event: message\ndata: " + data + b"\n\n"


def tell(body: bytes, headers: bytes = b"", path: bytes = PATH) -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: gw\r\nContent-Type: application/json\r\n" % path
    accepts = b"Accept: application/json, text/event-stream\r\nMcp-Session-Id: s1\r\n"
    return b"%s%s%sContent-Length: %d\r\n\r\n%s" % (head, accepts, headers, len(body), body)


@asynccontextmanager
async def tool_server(script: Any = None, tls: Any = None) -> AsyncIterator[Backend]:
    server = Backend()
    if script is not None:
        server.script = script
    await server.open(tls)
    try:
        yield server
    finally:
        if server._server is not None and server._server.is_serving():
            await server.close()


def settings(server: Backend, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "tools", "url": f"{server.url}/mcp", **more}]


def passing(bench: Bench) -> int:
    assert bench.gateway.serving.mcp is not None
    return len(bench.gateway.serving.mcp._passages)


class Agent:
    """It asks its model, makes the calls that it is asked for, and brings the results."""

    def __init__(
        self,
        bench: Bench,
        prompt: str = "go",
        key: str = "",
        mcp_session: str = "s1",
        *,
        headers: bytes = b"",
    ) -> None:
        self.bench, self.key, self.mcp_session = bench, key, mcp_session
        self._headers = headers
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]

    @property
    def _key_line(self) -> bytes:
        return b"Authorization: Bearer %s\r\n" % self.key.encode() if self.key else b""

    def request(self, *, stream: bool = False) -> bytes:
        tools = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
        body = {"model": "m", "messages": self.messages, "tools": tools, "stream": stream}
        return post(json.dumps(body).encode(), headers=self._key_line + self._headers)

    async def ask(self, **calls: str) -> None:
        """One turn. `c1="read {…}"`: its answer asks for that call, by that id."""
        asked = [
            {"id": call_id, "type": "function", "function": dict(zip(_CALL, text.split(" ", 1), strict=True))}
            for call_id, text in calls.items()
        ]
        message = {"role": "assistant", "content": None if asked else "hm", "tool_calls": asked}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if asked else "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 1}
        self.bench.backend.script = sends(
            answer(json.dumps({"id": "x", "choices": [choice], "usage": usage}).encode())
        )
        assert (await self.bench.ask(self.request())).status == 200
        self.messages.append(message)

    def results(self, *calls: str, size: int = 4) -> None:
        for call_id in calls:
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": "x" * size})

    def tell(self, body: bytes, path: bytes = PATH) -> bytes:
        said = tell(body, self._key_line, path)
        return said.replace(b"Mcp-Session-Id: s1", b"Mcp-Session-Id: %s" % self.mcp_session.encode())


_CALL = ("name", "arguments")


async def counted(bench: Bench, metric: str) -> dict[str, float]:
    text = (await bench.control(get(b"/metrics"))).body.decode()
    found = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.partition("{")[0] == metric:
            found[name.partition("{")[2].rstrip("}")] = float(value)
    return found
