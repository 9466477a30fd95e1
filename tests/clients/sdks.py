"""The three APIs of the SDKs of OpenAI and Anthropic, asked the same questions.

What the SDK parsed is what counts, so nothing here looks at the wire.
"""

from typing import Any

from tests.clients.dialogue import Call, Dialogue, Said, arguments, each
from tests.engines import MODEL

LOOKUP = {
    "type": "object",
    "properties": {"item": {"type": "string"}},
    "required": ["item"],
}


class Chat(Dialogue):
    def _resource(self) -> Any:
        return self._client.chat.completions

    def _request(self) -> dict[str, Any]:
        function = {"name": "lookup", "description": "The price of an item", "parameters": LOOKUP}
        asked = {
            "model": MODEL,
            "messages": self.history,
            "tools": [{"type": "function", "function": function}],
        }
        return asked | ({"stream_options": {"include_usage": True}} if self._streams else {})

    def _whole(self, answer: Any) -> Said:
        [choice] = answer.choices
        calls = [Call(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
        return Said(
            text=choice.message.content,
            calls=calls,
            finish=choice.finish_reason,
            input_tokens=answer.usage.prompt_tokens,
            output_tokens=answer.usage.completion_tokens,
        )

    async def _streamed(self, events: Any) -> Said:
        said, calls = Said(), dict[int, list[str]]()
        async for chunk in each(events):
            if chunk.usage:
                said.input_tokens, said.output_tokens = (
                    chunk.usage.prompt_tokens,
                    chunk.usage.completion_tokens,
                )
            for choice in chunk.choices:
                said.text += choice.delta.content or ""
                said.finish = choice.finish_reason or said.finish
                for part in choice.delta.tool_calls or []:
                    call = calls.setdefault(part.index, ["", "", ""])
                    for place, piece in enumerate((part.id, part.function.name, part.function.arguments)):
                        call[place] += piece or ""
        said.calls = [Call(*call) for call in calls.values()]
        return said

    def _remember(self, said: Said) -> None:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in said.calls
        ]
        message = {"role": "assistant", "content": said.text}
        self.history.append(message | ({"tool_calls": calls} if calls else {}))

    def tell(self, call: Call, result: str) -> None:
        self.history.append({"role": "tool", "tool_call_id": call.id, "content": result})


class Responses(Dialogue):
    def _resource(self) -> Any:
        return self._client.responses

    def _request(self) -> dict[str, Any]:
        tool = {
            "type": "function",
            "name": "lookup",
            "description": "The price of an item",
            "parameters": LOOKUP,
        }
        return {"model": MODEL, "input": self.history, "tools": [tool], "store": False}

    def _whole(self, answer: Any) -> Said:
        self._output = [item.model_dump(exclude_none=True) for item in answer.output]
        return Said(
            text=answer.output_text,
            calls=[Call(i.call_id, i.name, i.arguments) for i in answer.output if i.type == "function_call"],
            finish=answer.status,
            input_tokens=answer.usage.input_tokens,
            output_tokens=answer.usage.output_tokens,
        )

    async def _streamed(self, events: Any) -> Said:
        said, text, self._output = Said(), "", []
        async for event in each(events):
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.completed":
                said = self._whole(event.response)
        assert said.finish is None or said.text == text, "the parts are the whole"
        return said

    def _remember(self, said: Said) -> None:
        self.history += self._output

    def tell(self, call: Call, result: str) -> None:
        self.history.append({"type": "function_call_output", "call_id": call.id, "output": result})


class Messages(Dialogue):
    def _resource(self) -> Any:
        return self._client.messages

    def _request(self) -> dict[str, Any]:
        tool = {"name": "lookup", "description": "The price of an item", "input_schema": LOOKUP}
        return {"model": MODEL, "messages": self.history, "tools": [tool], "max_tokens": 500}

    def _whole(self, answer: Any) -> Said:
        return Said(
            text="".join(block.text for block in answer.content if block.type == "text"),
            calls=[Call(b.id, b.name, b.input) for b in answer.content if b.type == "tool_use"],
            finish=answer.stop_reason,
            input_tokens=_prompt_tokens(answer.usage),
            output_tokens=answer.usage.output_tokens,
        )

    async def _streamed(self, events: Any) -> Said:
        said, parts = Said(), dict[int, list[Any]]()
        async for event in each(events):
            match event.type:
                case "content_block_start":
                    parts[event.index] = [event.content_block, ""]
                case "content_block_delta":
                    delta = event.delta
                    parts[event.index][1] += delta.text if delta.type == "text_delta" else delta.partial_json
                case "message_delta":
                    said.finish, said.output_tokens = event.delta.stop_reason, event.usage.output_tokens
                    said.input_tokens = _prompt_tokens(event.usage)
                case _:
                    pass
        said.text = "".join(text for block, text in parts.values() if block.type == "text")
        said.calls = [Call(b.id, b.name, text) for b, text in parts.values() if b.type == "tool_use"]
        return said

    def _remember(self, said: Said) -> None:
        calls = [
            {"type": "tool_use", "id": c.id, "name": c.name, "input": arguments(c)} for c in said.calls
        ]  # fmt: skip
        self.history.append({"role": "assistant", "content": [{"type": "text", "text": said.text}, *calls]})

    def tell(self, call: Call, result: str) -> None:
        block = {"type": "tool_result", "tool_use_id": call.id, "content": result}
        self.history.append({"role": "user", "content": [block]})


def _prompt_tokens(usage: Any) -> int:
    """Messages count apart what was cached before, and what is cached from now on."""
    return sum(
        int(tokens or 0)
        for tokens in (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    )
