"""The demo's task with pydantic-ai: `python with_pydantic_ai.py PROTOCOL MODE MODEL PROMPT`."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterable

from pydantic_ai import Agent  # type: ignore[import-not-found]
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # type: ignore[import-not-found]


async def main(protocol: str, mode: str, model: str, prompt: str) -> None:
    speaks = OpenAIChatModel if protocol == "chat" else OpenAIResponsesModel
    agent = Agent(speaks(model), instructions="You repair programs.")

    @agent.tool_plain
    def bash(command: str) -> str:
        """Runs a command in this directory."""
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        return done.stdout + done.stderr

    if mode == "whole":
        print((await agent.run(prompt)).output)
        return

    async def read(_context: object, events: AsyncIterable[object]) -> None:
        async for _ in events:
            pass

    # Not `run_stream`, which ends a run at the first text, though tool calls follow it.
    print((await agent.run(prompt, event_stream_handler=read)).output)


asyncio.run(main(*sys.argv[1:]))
