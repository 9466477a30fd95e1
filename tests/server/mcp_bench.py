"""An MCP server on a raw socket behind a gateway, and what a client says to it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.server.bench import Backend, Bench, answer

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
    """The whole HTTP response that carries this message."""
    return answer(body, headers=b"Mcp-Session-Id: s1\r\n")


def event(data: bytes, event_id: str = "") -> bytes:
    lines = f"id: {event_id}\n".encode() if event_id else b""
    return lines + b"event: message\ndata: " + data + b"\n\n"


def tell(body: bytes, headers: bytes = b"", path: bytes = PATH) -> bytes:
    """The HTTP request that carries this message."""
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
    assert bench.gateway._mcp is not None
    return bench.gateway._mcp.passing
