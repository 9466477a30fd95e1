"""LangGraph with an MCP server's tools: `python mcp_with_langgraph.py SESSIONS MODEL MCP_URL PROMPT`.

SESSIONS: `one`, an MCP session for the whole run; `many`, one for each call, as `get_tools` does.
"""

import asyncio
import sys
from typing import Any

from langchain.agents import create_agent  # type: ignore[import-not-found]
from langchain_mcp_adapters.client import MultiServerMCPClient  # type: ignore[import-not-found]
from langchain_mcp_adapters.tools import load_mcp_tools  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]


async def run(model: str, tools: Any, prompt: str) -> None:
    graph = create_agent(ChatOpenAI(model=model, streaming=True), tools)
    print((await graph.ainvoke({"messages": [("user", prompt)]}))["messages"][-1].text)


async def main(sessions: str, model: str, mcp_url: str, prompt: str) -> None:
    client = MultiServerMCPClient({"tools": {"transport": "streamable_http", "url": mcp_url}})
    if sessions == "many":
        await run(model, await client.get_tools(), prompt)
        return
    async with client.session("tools") as session:
        await run(model, await load_mcp_tools(session), prompt)


asyncio.run(main(*sys.argv[1:]))
