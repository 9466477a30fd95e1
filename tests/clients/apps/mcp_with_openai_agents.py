"""openai-agents with the tools of an MCP server.

`python mcp_with_openai_agents.py PROTOCOL MODEL MCP_URL PROMPT`
"""

import asyncio
import sys

from agents import (  # type: ignore[import-not-found]
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    set_tracing_disabled,
)
from agents.mcp import MCPServerStreamableHttp  # type: ignore[import-not-found]
from openai import AsyncOpenAI

set_tracing_disabled(True)


async def main(protocol: str, model: str, mcp_url: str, prompt: str) -> None:
    speaks = OpenAIChatCompletionsModel if protocol == "chat" else OpenAIResponsesModel
    async with MCPServerStreamableHttp(params={"url": mcp_url}) as tools:
        agent = Agent(name="reader", model=speaks(model, AsyncOpenAI()), mcp_servers=[tools])
        result = Runner.run_streamed(agent, prompt)
        async for _ in result.stream_events():
            pass
        print(result.final_output)


asyncio.run(main(*sys.argv[1:]))
