"""The same with OpenAI's Responses: `with_openai_responses.py MODEL QUESTION`."""

import asyncio
import json
import sys
from typing import Any

from openai import AsyncOpenAI
from ready_calls import ready_calls

PARAMETERS = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
TOOLS: Any = [
    {"type": "function", "name": "price", "description": "The price of an item", "parameters": PARAMETERS}
]


async def price(item: str) -> str:
    print(f"looking for the price of {item}", flush=True)
    await asyncio.sleep(0.1)
    return f"A {item} costs 12."


async def main(model: str, question: str) -> None:
    client = AsyncOpenAI()
    items: list[Any] = [{"role": "user", "content": question}]
    while True:
        begun: dict[str, asyncio.Task[str]] = {}
        async with client.responses.stream(model=model, input=items, tools=TOOLS, store=False) as stream:
            async for call in ready_calls(stream):
                begun[call.id] = asyncio.create_task(price(**call.arguments))
            answer = await stream.get_final_response()
        asked = [item for item in answer.output if item.type == "function_call"]
        if not asked:
            print(answer.output_text)
            return
        fields = {"type", "call_id", "name", "arguments"}
        items += [each.model_dump(include=fields) for each in asked]
        for each in asked:
            result = begun.get(each.call_id) or price(**json.loads(each.arguments))
            items.append({"type": "function_call_output", "call_id": each.call_id, "output": await result})


asyncio.run(main(*sys.argv[1:]))
