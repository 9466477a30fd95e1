"""An MCP server with the official SDK, which writes down every call: `mcp_server.py LOG [--json]`.

Prints its port. A line of the log is a tool, its arguments and what became of the call.
"""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import SamplingMessage, TextContent, ToolAnnotations
from pydantic import BaseModel

LOG = Path(sys.argv[1])
READS = ToolAnnotations(read_only_hint=True)
server = MCPServer("tools")


class Events(EventStore):
    """Everything that was sent, by its id; streams go on from there."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.sent.append((stream_id, message))
        return str(len(self.sent))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        number = int(last_event_id)
        stream = self.sent[number - 1][0]
        for at, (of, message) in enumerate(self.sent[number:], number + 1):
            if of == stream and message is not None:
                await send_callback(EventMessage(message, str(at)))
        return stream


@contextlib.contextmanager
def noted(tool: str, **arguments: Any) -> Iterator[None]:
    note(tool, arguments, "begun")
    try:
        yield
    except asyncio.CancelledError:
        note(tool, arguments, "cancelled")
        raise
    note(tool, arguments, "done")


def note(tool: str, arguments: dict[str, Any], what: str) -> None:
    with LOG.open("a") as log:
        log.write(json.dumps({"tool": tool, "arguments": arguments, "what": what}) + "\n")


@server.tool(annotations=READS)
async def read(path: str, takes_s: float = 0.0) -> str:
    with noted("read", path=path, takes_s=takes_s):
        await asyncio.sleep(takes_s)
        return f"text of {path}"


@server.tool()
async def write(path: str, takes_s: float = 0.0) -> str:
    with noted("write", path=path, takes_s=takes_s):
        await asyncio.sleep(takes_s)
        return f"wrote {path}"


@server.tool()
async def fails() -> str:
    with noted("fails"):
        pass
    raise ValueError("it cannot be done")


@server.tool()
async def counts(to: int, ctx: Context) -> str:
    with noted("counts", to=to):
        for number in range(1, to + 1):
            await ctx.report_progress(number, to)
        return f"counted to {to}"


@server.tool()
async def asks_the_model(question: str, ctx: Context) -> str:
    with noted("asks_the_model", question=question):
        asked = [SamplingMessage(role="user", content=TextContent(type="text", text=question))]
        said = await ctx.session.create_message(asked, max_tokens=9, related_request_id=ctx.request_id)
        return f"the model says {said.content.text}"


class Name(BaseModel):
    name: str


@server.tool()
async def asks_the_person(ctx: Context) -> str:
    with noted("asks_the_person"):
        answer = await ctx.elicit("Who are you?", Name)
        assert answer.action == "accept"
        return f"the person says {answer.data.name}"


@server.tool()
async def hangs_up_and_goes_on(ctx: Context) -> str:
    """Its stream is closed in the midst of it; the client has to come back for the result."""
    with noted("hangs_up_and_goes_on"):
        await ctx.close_sse_stream()
        await asyncio.sleep(0.5)
        return "still here"


@server.tool()
async def waits() -> str:
    with noted("waits"):
        await asyncio.sleep(3600)
        return "never"


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    is_json = "--json" in sys.argv
    app = server.streamable_http_app(
        json_response=is_json, event_store=None if is_json else Events(), retry_interval=100
    )
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])


main()
