"""An MCP server with the official SDK before version 2, which always has sessions: `mcp_server_1.py LOG`.

Prints its port. It has the tool `read` of `mcp_server.py`, and writes down the same of its calls.
"""

import asyncio
import json
import socket
import sys
from pathlib import Path

import uvicorn
from mcp.server.fastmcp import FastMCP  # type: ignore[attr-defined]  # not in the SDK that is checked
from mcp.types import ToolAnnotations

LOG = Path(sys.argv[1])
server = FastMCP("tools")


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))  # type: ignore[call-arg]
async def read(path: str, takes_s: float = 0.0) -> str:
    for what in ("begun", "done"):
        with LOG.open("a") as log:
            arguments = {"path": path, "takes_s": takes_s}
            log.write(json.dumps({"tool": "read", "arguments": arguments, "what": what}) + "\n")
        if what == "begun":
            await asyncio.sleep(takes_s)
    return f"text of {path}"


listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
config = uvicorn.Config(server.streamable_http_app(), log_level="warning", timeout_graceful_shutdown=1)
uvicorn.Server(config).run(sockets=[listening])
