"""pydantic-ai with an MCP server's tools: `python mcp_with_pydantic_ai.py PROTOCOL MODEL MCP_URL PROMPT`."""

import asyncio
import sys
from collections.abc import AsyncIterable

from pydantic_ai import Agent  # type: ignore[import-not-found]
from pydantic_ai.mcp import MCPToolset  # type: ignore[import-not-found]
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # type: ignore[import-not-found]


async def read(_context: object, events: AsyncIterable[object]) -> None:
    async for _ in events:
        pass


async def main(protocol: str, model: str, mcp_url: str, prompt: str) -> None:
    speaks = OpenAIChatModel if protocol == "chat" else OpenAIResponsesModel
    agent = Agent(speaks(model), toolsets=[MCPToolset(mcp_url)])
    print((await agent.run(prompt, event_stream_handler=read)).output)


asyncio.run(main(*sys.argv[1:]))
