"""The same with Anthropic's SDK and without asyncio, in threads: `with_anthropic.py MODEL QUESTION`."""

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from anthropic import Anthropic
from ready_calls import ready_calls_sync

SCHEMA = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
TOOLS: Any = [{"name": "price", "description": "The price of an item", "input_schema": SCHEMA}]


def price(item: str) -> str:
    print(f"looking for the price of {item}", flush=True)
    time.sleep(0.1)
    return f"A {item} costs 12."


def main(model: str, question: str) -> None:
    client = Anthropic()
    messages: list[Any] = [{"role": "user", "content": question}]
    with ThreadPoolExecutor() as threads:
        while True:
            begun: dict[str, Future[str]] = {}
            with client.messages.stream(
                model=model, max_tokens=1000, messages=messages, tools=TOOLS
            ) as stream:
                for call in ready_calls_sync(stream):
                    begun[call.id] = threads.submit(price, **call.arguments)
                answer = stream.get_final_message()
            messages.append({"role": "assistant", "content": answer.content})
            asked = [block for block in answer.content if block.type == "tool_use"]
            if not asked:
                print("".join(block.text for block in answer.content if block.type == "text"))
                return
            results = []
            for block in asked:
                work = begun.get(block.id) or threads.submit(price, str(block.input["item"]))
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": work.result()})
            messages.append({"role": "user", "content": results})


main(*sys.argv[1:])
