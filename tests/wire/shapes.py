"""Requests and answers of the shapes that agents and engines really send, in miniature."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.wire.body import RequestBody, decoding_body
from gateway.wire.headers import RawHeaders
from gateway.wire.slices import finish


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_body(body: bytes, *, is_responses: bool) -> RequestBody:
    return finish(decoding_body(body, is_responses=is_responses))


def raws(items: Iterable[Any]) -> list[Raw]:
    return msgspec.json.decode(encode(list(items)), type=list[Raw])


def headers(**fields: str) -> RawHeaders:
    return [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in fields.items()]


def call(call_id: str, name: str = "ls") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": '{"path": "."}'}}


def assistant(*call_ids: str, text: str | None = "Step.") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return {**message, "tool_calls": [call(call_id) for call_id in call_ids]} if call_ids else message


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


def user(text: str = "Go on.") -> dict[str, Any]:
    return {"role": "user", "content": text}


def sse(events: Iterable[Mapping[str, Any]], *, named: bool, end: bytes = b"\n\n") -> bytes:
    """A stream; `named` writes the event line that Responses and Messages have."""
    line_end = end[: len(end) // 2]
    out = b""
    for event in events:
        if named:
            out += b"event: " + event["type"].encode() + line_end
        out += b"data: " + encode(event) + end
    return out


def chat_events() -> list[dict[str, Any]]:
    """What vLLM streams: the role, reasoning, text, two parallel calls in pieces, the end, usage."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}

    def piece(index: int, arguments: str, **first: Any) -> dict[str, Any]:
        function = {"name": first.pop("name"), "arguments": ""} if first else {"arguments": arguments}
        return chunk({"tool_calls": [{"index": index, **first, "function": function}]})

    usage = {"prompt_tokens": 30, "total_tokens": 37, "completion_tokens": 7}
    return [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning": 'Hm, "finish_reason":"no".'}),
        chunk({"content": "Step é 0."}),
        piece(0, "", id="call_a", type="function", name="ls"),
        piece(0, '{"path": "\\n\\n"}'),
        piece(1, "", id="call_b", type="function", name="cat"),
        piece(1, "{}"),
        chunk({"content": ""}, finish="tool_calls"),
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 16}},
        },
    ]


def chat_stream(end: bytes = b"\n\n") -> bytes:
    return sse(chat_events(), named=False, end=end) + b"data: [DONE]" + end


def chat_body() -> bytes:
    message = {"role": "assistant", "content": None, "tool_calls": [call("call_a"), call("call_b", "cat")]}
    usage = {"prompt_tokens": 30, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 16}}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "stop_reason": None}
    return encode({"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": usage})


def response(status: str, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, "output": output, "tools": [], **more}


def output_items() -> list[dict[str, Any]]:
    return [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_a", "name": "ls", "arguments": "{}"},
        {"type": "local_shell_call", "id": "ls_1", "call_id": "call_b", "action": {}},
    ]


RESPONSE_USAGE = {
    "input_tokens": 30,
    "output_tokens": 7,
    "input_tokens_details": {"cached_tokens": 16},
    "total_tokens": 37,
}


def responses_events() -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response("in_progress", [])},
        {"type": "response.in_progress", "response": response("in_progress", [])},
    ]
    for index, item in enumerate(output_items()):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        if item["type"] == "message":
            events.append({"type": "response.output_text.delta", "item_id": item["id"], "delta": "Hi\n\nyou"})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    done = response("completed", output_items(), usage=RESPONSE_USAGE, conversation={"id": "conv_1"})
    return [*events, {"type": "response.completed", "response": done}]


def responses_stream(end: bytes = b"\n\n") -> bytes:
    return sse(responses_events(), named=True, end=end)


def message_events() -> list[dict[str, Any]]:
    def start(index: int, **block: Any) -> dict[str, Any]:
        return {"type": "content_block_start", "index": index, "content_block": block}

    def delta(index: int, **delta: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": delta}

    usage = {"input_tokens": 14, "output_tokens": 0, "cache_read_input_tokens": 16}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": usage}
    return [
        {"type": "message_start", "message": message},
        {"type": "ping"},
        start(0, type="text", text=""),
        delta(0, type="text_delta", text="Step 0."),
        {"type": "content_block_stop", "index": 0},
        start(1, type="tool_use", id="call_a", name="ls", input={}),
        delta(1, type="input_json_delta", partial_json="{}"),
        {"type": "content_block_stop", "index": 1},
        start(2, type="tool_use", id="call_b", name="cat", input={}),
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ]


def messages_stream(end: bytes = b"\n\n") -> bytes:
    return sse(message_events(), named=True, end=end)


def message_body() -> bytes:
    content = [
        {"type": "text", "text": "Step 0."},
        {"type": "tool_use", "id": "call_a", "name": "ls", "input": {}},
        {"type": "tool_use", "id": "call_b", "name": "cat", "input": {}},
    ]
    usage = {"input_tokens": 10, "output_tokens": 7, "cache_read_input_tokens": 16}
    usage["cache_creation_input_tokens"] = 4
    return encode(
        {"id": "msg_1", "type": "message", "content": content, "stop_reason": "tool_use", "usage": usage}
    )
