"""Agents that loop: a request, a tool that takes a while, the next request, until an answer calls no tool.

Nothing in them knows Turnpike: each sends its whole conversation to a base URL, as agents do.

    python -m gateway.tryout.agents BASE_URL COUNT
"""

import asyncio
import itertools
import json
import sys
from random import Random
from typing import Any, Final

import aiohttp

from gateway.tryout import end_with_parent
from gateway.tryout.engine import MODEL

_TASKS: Final = (
    "Fix the failing test of the parser",
    "Add a flag for verbose output",
    "Explain where the time goes at start",
    "Rename the configuration module",
    "Write a test for the cache",
    "Find out why the build is slow",
)
_SYSTEM: Final = "You are a coding agent. " + "Work in small steps, and run the tests after each. " * 120
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
_RETRY_S: Final = 1.0


async def run(base_url: str, count: int) -> None:
    numbers = itertools.count(1)
    async with aiohttp.ClientSession(headers={"user-agent": "try-agent/1"}) as http:
        await asyncio.gather(*(_agent(http, base_url, Random(seed), numbers) for seed in range(count)))


async def _agent(http: aiohttp.ClientSession, base_url: str, rng: Random, numbers: Any) -> None:
    await asyncio.sleep(rng.uniform(0, 4))
    while True:
        task = f"{rng.choice(_TASKS)} (ticket {next(numbers)})"
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": task},
        ]
        while (answer := await _complete(http, base_url, messages)).get("tool_calls"):
            messages.append(answer)
            await asyncio.sleep(rng.uniform(0.2, 3.0))  # the tool
            output = "".join(rng.choices("abcdefgh \n", k=rng.randint(500, 6000)))
            calls = answer["tool_calls"]
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": output} for call in calls]
        await asyncio.sleep(rng.uniform(0.5, 2.0))


async def _complete(
    http: aiohttp.ClientSession, base_url: str, messages: list[dict[str, Any]]
) -> dict[str, Any]:
    body = {"model": MODEL, "messages": messages, "tools": [_TOOL], "stream": True}
    while True:
        try:
            async with http.post(f"{base_url}/chat/completions", json=body) as response:
                if response.status == 200:
                    return await _read(response)
        except (aiohttp.ClientError, OSError):
            pass  # a retry follows, as agents do it
        await asyncio.sleep(_RETRY_S)


async def _read(response: aiohttp.ClientResponse) -> dict[str, Any]:
    content, calls = "", []
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise aiohttp.ClientPayloadError(chunk["error"])
        for choice in chunk["choices"]:
            content += choice["delta"].get("content") or ""
            calls += [
                {name: each[name] for name in ("id", "type", "function")}
                for each in choice["delta"].get("tool_calls") or ()
            ]
    return {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
