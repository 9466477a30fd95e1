"""The same with openai-agents, which calls tools itself, later: `with_openai_agents.py MODEL QUESTION`.

Each tool finds its work begun, by the id of its call.
"""

import asyncio
import sys

from agents import (  # type: ignore[import-not-found]
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.tool_context import ToolContext  # type: ignore[import-not-found]
from openai import AsyncOpenAI
from ready_calls import ready_calls

set_tracing_disabled(True)
begun: dict[str, asyncio.Task[str]] = {}


async def look_up(item: str) -> str:
    print(f"looking for the price of {item}", flush=True)
    await asyncio.sleep(0.1)
    return f"A {item} costs 12."


@function_tool
async def price(context: ToolContext, item: str) -> str:
    """The price of an item."""
    return await (begun.pop(context.tool_call_id, None) or look_up(item))


async def main(model: str, question: str) -> None:
    speaks = OpenAIChatCompletionsModel(model, AsyncOpenAI())
    agent = Agent(name="shopper", model=speaks, tools=[price])
    result = Runner.run_streamed(agent, question)
    async for call in ready_calls(result.stream_events()):
        if call.id not in begun:
            begun[call.id] = asyncio.create_task(look_up(**call.arguments))
    print(result.final_output)


asyncio.run(main(*sys.argv[1:]))
