"""An MCP client with the official SDK: `mcp_client.py URL MODE KEY`. Prints what it saw, as JSON.

MODE: `legacy`, the handshake and sessions up to revision 2025-11-25; `auto`, the newest that both know.
"""

import asyncio
import json
import sys
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CreateMessageResult, ElicitResult, TextContent

URL, MODE, KEY = sys.argv[1:4]
counted: list[float] = []


async def sampled(context: Any, params: Any) -> CreateMessageResult:
    text = f"42 to {params.messages[0].content.text!r}"
    return CreateMessageResult(role="assistant", model="m", content=TextContent(type="text", text=text))


async def elicited(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": f"the one asked {params.message!r}"})


async def progressed(progress: float, total: float | None, message: str | None) -> None:
    counted.append(progress)


async def text_of(calling: Any) -> str:
    result = await calling
    return ("failed: " if result.is_error else "") + result.content[0].text


async def main() -> None:
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=30)
    client = Client(
        streamable_http_client(URL, http_client=http),
        mode=MODE,
        sampling_callback=sampled,
        elicitation_callback=elicited,
    )
    seen: dict[str, Any] = {}
    async with client:
        seen["tools"] = sorted(tool.name for tool in (await client.list_tools()).tools)
        seen["read"] = await text_of(client.call_tool("read", {"path": "a"}))
        seen["fails"] = await text_of(client.call_tool("fails", {}))
        together = [client.call_tool("read", {"path": f"p{n}", "takes_s": 0.05}) for n in range(20)]
        seen["together"] = await asyncio.gather(*map(text_of, together))
        seen["large"] = len(await text_of(client.call_tool("read", {"path": "x" * 300_000})))
        seen["counts"] = await text_of(client.call_tool("counts", {"to": 3}, progress_callback=progressed))
        seen["progress"] = counted
        if MODE == "legacy" and "--whole" not in sys.argv:
            question = {"question": "why?"}
            seen["model"] = await text_of(client.call_tool("asks_the_model", question))
            seen["person"] = await text_of(client.call_tool("asks_the_person", {}))
            seen["resumed"] = await text_of(client.call_tool("hangs_up_and_goes_on", {}))
        waiting = asyncio.ensure_future(client.call_tool("waits", {}))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        seen["after"] = await text_of(client.call_tool("read", {"path": "b"}))
        seen["ok"] = True
    print(json.dumps(seen))


asyncio.run(main())
