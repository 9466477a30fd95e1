"""A model behind a replica's address that asks real agents for calls of their tools, and ends."""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from tests.server.bench import Exchange, answer, chunk

_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

Calls = list[dict[str, Any]]


class ScriptedModel:
    """`steps`: what each answer asks of the tool whose name ends so; behind the last one it says `done`."""

    def __init__(self, tool: str, steps: list[Calls]) -> None:
        self._tool = tool
        self._steps = steps
        self.brought = 0
        self.results: list[str] = []
        self.behind_first: Callable[[], Awaitable[None]] | None = None
        """What it waits for when the arguments of a first call are out."""

    async def script(self, exchange: Exchange) -> None:
        request = exchange.request
        asked = json.loads(request.body) if request.body else {}
        path = request.target.partition(b"?")[0]
        if path.endswith(b"/count_tokens"):
            await exchange.send(answer(b'{"input_tokens":5}'))
        elif path.endswith(b"/messages"):
            await self._messages(exchange, asked)
        elif path.endswith(b"/responses"):
            await self._responses(exchange, asked)
        elif path.endswith(b"/chat/completions"):
            await self._chat(exchange, asked)
        else:
            await exchange.send(answer(b"{}"))

    def _step(self, results: list[Any], tools: list[str]) -> tuple[str | None, Calls]:
        """The tool's name and its calls; none if there is nothing to ask."""
        if results:
            self.brought += 1
            self.results += [json.dumps(each) for each in results]
        found = [name for name in tools if name.endswith(self._tool)]
        step = self.brought
        return (found[0], self._steps[step]) if found and step < len(self._steps) else (None, [])

    # --- Anthropic's messages --------------------------------------------------------------------

    async def _messages(self, exchange: Exchange, asked: dict[str, Any]) -> None:
        content = asked["messages"][-1]["content"]
        results = [b for b in content if b["type"] == "tool_result"] if isinstance(content, list) else []
        name, calls = self._step(results, [tool["name"] for tool in asked.get("tools") or ()])
        if not asked.get("stream"):
            text = {"type": "text", "text": "done"}
            body = _message([text], "end_turn")
            await exchange.send(answer(json.dumps(body).encode()))
            return
        events: list[dict[str, Any]] = [{"type": "message_start", "message": _message([], None)}]
        for index, arguments in enumerate(calls):
            block: dict[str, Any] = {
                "type": "tool_use",
                "id": f"toolu_{uuid4().hex}",
                "name": name,
                "input": {},
            }
            delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
            events += _block(index, block, delta)
        if not calls:
            events += _block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "done"})
        reason = "tool_use" if calls else "end_turn"
        usage = {"input_tokens": 5, "output_tokens": 5}
        last: list[dict[str, Any]] = [
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": None},
                "usage": usage,
            },
            {"type": "message_stop"},
        ]
        await self._stream(exchange, events + last, first=3 if calls else None)

    # --- OpenAI's responses ----------------------------------------------------------------------

    async def _responses(self, exchange: Exchange, asked: dict[str, Any]) -> None:
        items = asked["input"] if isinstance(asked["input"], list) else []
        results = _trailing(items, "type", "function_call_output")
        name, calls = self._step(results, list(_tool_names(asked.get("tools") or [])))
        output: list[dict[str, Any]] = []
        space, _, short = (name or "").rpartition("\x00")
        for index, arguments in enumerate(calls):
            call = {"type": "function_call", "id": f"fc_{index}", "call_id": f"call_{uuid4().hex}"}
            call |= {"name": short, "arguments": json.dumps(arguments), "status": "completed"}
            output.append(call | ({"namespace": space} if space else {}))
        if not calls:
            text = {"type": "output_text", "text": "done", "annotations": []}
            output.append(
                {
                    "type": "message",
                    "id": "msg_1",
                    "role": "assistant",
                    "status": "completed",
                    "content": [text],
                }
            )
        usage = {"input_tokens": 5, "output_tokens": 5, "total_tokens": 10}
        response = {"id": f"resp_{self.brought}", "object": "response", "status": "in_progress", "output": []}
        events: list[dict[str, Any]] = [{"type": "response.created", "response": response}]
        for index, item in enumerate(output):
            empty: dict[str, Any] = {"arguments": ""} if "arguments" in item else {"content": []}
            begun = {**item, "status": "in_progress", **empty}
            events.append({"type": "response.output_item.added", "output_index": index, "item": begun})
            if "arguments" in item:
                delta = {"output_index": index, "item_id": item["id"], "delta": item["arguments"]}
                events.append({"type": "response.function_call_arguments.delta", **delta})
            else:
                at = {"output_index": index, "content_index": 0, "item_id": item["id"]}
                [part] = item["content"]
                opened = {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
                delta = {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []}
                events += [opened, delta]
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        whole = response | {"status": "completed", "output": output, "usage": usage}
        events.append({"type": "response.completed", "response": whole})
        await self._stream(exchange, events, first=3 if calls else None)

    # --- OpenAI's chat completions ---------------------------------------------------------------

    async def _chat(self, exchange: Exchange, asked: dict[str, Any]) -> None:
        tools = [tool["function"]["name"] for tool in asked.get("tools") or ()]
        name, calls = self._step(_trailing(asked["messages"], "role", "tool"), tools)
        events = [_delta({"role": "assistant", "content": None if calls else "done"})]
        for index, arguments in enumerate(calls):
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"index": index, "id": f"call_{uuid4().hex}", "type": "function"}
            events.append(_delta({"tool_calls": [{**call, "function": function}]}))
        events += [_delta({}, "tool_calls" if calls else "stop"), {}]
        await self._stream(exchange, events, first=2 if calls else None)

    async def _stream(self, exchange: Exchange, events: list[dict[str, Any]], *, first: int | None) -> None:
        """`first`: how many events there are up to the arguments of the first call, if there is one."""
        await exchange.send(_STREAM)
        for number, each in enumerate(events):
            if number == first and self.behind_first is not None:
                await self.behind_first()
            await exchange.send(_event(each))
        await exchange.send(chunk(b""))


def _trailing(items: list[dict[str, Any]], field: str, value: str) -> list[dict[str, Any]]:
    behind = next((n for n, item in enumerate(reversed(items)) if item.get(field) != value), len(items))
    return items[len(items) - behind :]


def _tool_names(tools: list[dict[str, Any]]) -> list[str]:
    """Codex puts the tools of a server into a namespace: its name comes first then, and a NUL."""
    names = []
    for tool in tools:
        if tool.get("type") == "namespace":
            names += [f"{tool['name']}\x00{each['name']}" for each in tool["tools"]]
        elif "name" in tool:
            names.append(tool["name"])
    return names


def _message(content: list[Any], reason: str | None) -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content}
    return message | {"stop_reason": reason, "stop_sequence": None, "usage": usage}


def _block(index: int, block: dict[str, Any], delta: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        {"type": "content_block_delta", "index": index, "delta": delta},
        {"type": "content_block_stop", "index": index},
    ]


def _delta(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c_1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def _event(data: dict[str, Any]) -> bytes:
    name = b"event: %s\n" % data["type"].encode() if "type" in data else b""
    return chunk(b"%sdata: %s\n\n" % (name, json.dumps(data).encode() if data else b"[DONE]"))
