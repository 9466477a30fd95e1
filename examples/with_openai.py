"""An agent with OpenAI's SDK whose tools start while the model still writes.

with_openai.py MODEL QUESTION
"""

import asyncio
import json
import sys
from typing import Any

from openai import AsyncOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from ready_calls import ready_calls

PARAMETERS = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
FUNCTION = {"name": "price", "description": "The price of an item", "parameters": PARAMETERS}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]


async def price(item: str) -> str:
    print(f"looking for the price of {item}", flush=True)
    await asyncio.sleep(0.1)
    return f"A {item} costs 12."


async def main(model: str, question: str) -> None:
    client = AsyncOpenAI()
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        stream = await client.chat.completions.create(
            model=model, messages=messages, tools=TOOLS, stream=True
        )
        state = ChatCompletionStreamState()
        begun: dict[str, asyncio.Task[str]] = {}
        async for call in ready_calls(stream, on_chunk=state.handle_chunk):
            begun[call.id] = asyncio.create_task(price(**call.arguments))
        answer = state.get_final_completion().choices[0].message
        messages.append(answer.model_dump(exclude_none=True))
        if not answer.tool_calls:
            print(answer.content)
            return
        for asked in answer.tool_calls:
            result = begun.get(asked.id) or price(**json.loads(asked.function.arguments))
            messages.append({"role": "tool", "tool_call_id": asked.id, "content": await result})


asyncio.run(main(*sys.argv[1:]))
