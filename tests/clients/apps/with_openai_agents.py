"""The demo's task with openai-agents: `python with_openai_agents.py PROTOCOL MODE MODEL PROMPT`."""

import asyncio
import subprocess
import sys

from agents import (  # type: ignore[import-not-found]
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def bash(command: str) -> str:
    """Runs a command in this directory."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return done.stdout + done.stderr


async def main(protocol: str, mode: str, model: str, prompt: str) -> None:
    speaks = OpenAIChatCompletionsModel if protocol == "chat" else OpenAIResponsesModel
    agent = Agent(
        name="repairer",
        instructions="You repair programs.",
        model=speaks(model, AsyncOpenAI()),
        tools=[bash],
    )
    if mode == "whole":
        print((await Runner.run(agent, prompt)).final_output)
        return
    result = Runner.run_streamed(agent, prompt)
    async for _ in result.stream_events():
        pass
    print(result.final_output)


asyncio.run(main(*sys.argv[1:]))
