"""What a vLLM server answers, as bytes: a text and tool calls, streamed in each protocol, or whole."""

import itertools
import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

from benchmarks.conversations import CALL_ID_BYTES, CALL_ID_PREFIX
from benchmarks.dialects import CHAT, MESSAGES, MODEL, RESPONSES

_ID: Final = "chatcmpl-4bf92f3577b34da6a3ce929d0e0e4736"
_PLACEHOLDER: Final = CALL_ID_PREFIX + b"0" * 32
_ARGUMENTS: Final = json.dumps({"command": "python -m pytest -q tests/wire 2>&1 | tail -20"})
_TEXT: Final = "The parser gives back the bytes of the unfinished request twice. I run its tests first. " * 4

JSON_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-length: %d\r\ncontent-type: application/json\r\n\r\n"
)
STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)

Call = tuple[str, str, Sequence[str]]
"""Its id, the tool's name, and the pieces in which its arguments come."""


def call_id(number: int) -> bytes:
    """As engines make them: nobody can tell the number."""
    return CALL_ID_PREFIX + blake2b(b"%d" % number, digest_size=16).hexdigest().encode()


def find_call_id(body: bytes) -> bytes | None:
    """The id of the tool call in an answer."""
    start = body.find(CALL_ID_PREFIX)
    return body[start : start + CALL_ID_BYTES] if start >= 0 else None


def completion_parts() -> tuple[bytes, bytes]:
    """A whole chat completion, up to and from the tool call's id."""
    body = compact(whole(CHAT.name, [_TEXT], [(_PLACEHOLDER.decode(), "bash", [_ARGUMENTS])]))
    before, after = (JSON_HEAD % len(body) + body).split(_PLACEHOLDER)
    return before, after


class StreamParts:
    """A stream in which so many events say something, each a chunk of the response's body."""

    def __init__(self, events: int, protocol: str = CHAT.name) -> None:
        """Of the events three in four are text, and the others a call's arguments: at least four."""
        texts, arguments = _pieces(events)
        made = stream(protocol, texts, [(_PLACEHOLDER.decode(), "bash", arguments)])
        self.chunks = [chunk(event) for event in made]
        self.chunks[-1] += b"0\r\n\r\n"
        self._calls = {
            at: each.split(_PLACEHOLDER) for at, each in enumerate(self.chunks) if _PLACEHOLDER in each
        }

    @property
    def events(self) -> int:
        """Those with an object; a chat's end mark is none."""
        return sum(each.count(b"data: {") for each in self.chunks)

    def chunk(self, number: int, call_number: int) -> bytes:
        """The event of this number; if it names the tool call, by the id of that number."""
        call = self._calls.get(number)
        return self.chunks[number] if call is None else call_id(call_number).join(call)


def _pieces(events: int) -> tuple[list[str], list[str]]:
    """Tokens of the text, and of the arguments."""
    words = _TEXT.split()
    of_call = max(1, events // 4)
    texts = [" " + words[number % len(words)] for number in range(events - of_call)]
    command = "python -m pytest -q tests/wire " * (1 + of_call // 8)
    arguments = json.dumps({"command": command})
    size = -(-len(arguments) // of_call)
    return texts, [arguments[at : at + size] for at in range(0, len(arguments), size)]


def stream(protocol: str, texts: Sequence[str], calls: Sequence[Call]) -> Iterator[bytes]:
    """Its events."""
    made = {CHAT.name: _chat_stream, RESPONSES.name: _responses_stream, MESSAGES.name: _messages_stream}
    return made[protocol](texts, calls)


def whole(protocol: str, texts: Sequence[str], calls: Sequence[Call]) -> dict[str, Any]:
    if protocol == RESPONSES.name:
        return _response(texts, calls)
    if protocol == MESSAGES.name:
        uses = [
            {"type": "tool_use", "id": call, "name": name, "input": json.loads("".join(pieces))}
            for call, name, pieces in calls
        ]
        message = _message("tool_use" if calls else "end_turn", output_tokens=64)
        return message | {"content": [{"type": "text", "text": "".join(texts)}, *uses]}
    made = [
        {"id": call, "type": "function", "function": {"name": name, "arguments": "".join(pieces)}}
        for call, name, pieces in calls
    ]
    message = {"role": "assistant", "content": "".join(texts), "refusal": None, "annotations": None,
               "audio": None, "function_call": None, "tool_calls": made, "reasoning": None}  # fmt: skip
    usage = {"prompt_tokens": 512, "total_tokens": 576, "completion_tokens": 64,
             "prompt_tokens_details": {"cached_tokens": 448}}  # fmt: skip
    choice = {"index": 0, "message": message, "logprobs": None, "stop_reason": None, "token_ids": None,
              "finish_reason": "tool_calls" if calls else "stop"}  # fmt: skip
    return {"id": _ID, "object": "chat.completion", "created": 1767225600, "model": MODEL,
            "choices": [choice], "service_tier": None, "system_fingerprint": None, "usage": usage,
            "prompt_logprobs": None, "prompt_token_ids": None, "kv_transfer_params": None}  # fmt: skip


def _chat_stream(texts: Sequence[str], calls: Sequence[Call]) -> Iterator[bytes]:
    def event(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason,
                  "token_ids": None}  # fmt: skip
        said = {"id": _ID, "object": "chat.completion.chunk", "created": 1767225600, "model": MODEL,
                "choices": [choice]}  # fmt: skip
        return b"data: %s\n\n" % compact(said)

    yield event({"role": "assistant", "content": ""})
    for text in texts:
        yield event({"content": text})
    for index, (call, name, pieces) in enumerate(calls):
        begins = {"id": call, "type": "function", "index": index, "function": {"name": name}}
        yield event({"tool_calls": [begins]})
        for piece in pieces:
            yield event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield event({}, "tool_calls" if calls else "stop")
    yield b"data: [DONE]\n\n"


def _function_call(call: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    return {"arguments": arguments, "call_id": call, "name": name, "type": "function_call",
            "id": f"fc_{call[-16:]}", "status": status}  # fmt: skip


def _response(texts: Sequence[str], calls: Sequence[Call]) -> dict[str, Any]:
    part: dict[str, Any] = {
        "annotations": [],
        "text": "".join(texts),
        "type": "output_text",
        "logprobs": None,
    }
    message = {"id": "msg_4bf92f3577b34da6", "role": "assistant", "type": "message", "content": [part],
               "status": "completed"}  # fmt: skip
    made = [_function_call(call, name, "".join(pieces), "completed") for call, name, pieces in calls]
    usage = {"input_tokens": 512, "input_tokens_details": {"cached_tokens": 448}, "output_tokens": 64,
             "total_tokens": 576}  # fmt: skip
    return {"id": "resp_4bf92f3577b34da6a3ce929d0e0e4736", "created_at": 1767225600, "model": MODEL,
            "object": "response", "output": [message, *made], "status": "completed", "tools": [],
            "usage": usage}  # fmt: skip


def _responses_stream(texts: Sequence[str], calls: Sequence[Call]) -> Iterator[bytes]:
    numbers = itertools.count()

    def event(kind: str, **fields: Any) -> bytes:
        said = {**fields, "sequence_number": next(numbers), "type": f"response.{kind}"}
        return b"event: response.%s\ndata: %s\n\n" % (kind.encode(), compact(said))

    done = _response(texts, calls)
    begun = {**done, "output": [], "status": "in_progress"}
    del begun["usage"]
    message = done["output"][0]
    (part,) = message["content"]
    at = {"item_id": message["id"], "output_index": 0}
    yield event("created", response=begun)
    yield event("in_progress", response=begun)
    yield event("output_item.added", item={**message, "content": [], "status": "in_progress"}, output_index=0)
    yield event("content_part.added", content_index=0, part={**part, "text": ""}, **at)
    for piece in texts:
        yield event("output_text.delta", content_index=0, delta=piece, logprobs=[], **at)
    yield event("output_text.done", content_index=0, text=part["text"], logprobs=[], **at)
    yield event("content_part.done", content_index=0, part=part, **at)
    yield event("output_item.done", item=message, output_index=0)
    for index, (call, name, pieces) in enumerate(calls, start=1):
        item = done["output"][index]
        at = {"item_id": item["id"], "output_index": index}
        begins = _function_call(call, name, "", "in_progress")
        yield event("output_item.added", item=begins, output_index=index)
        for piece in pieces:
            yield event("function_call_arguments.delta", delta=piece, **at)
        yield event("function_call_arguments.done", arguments=item["arguments"], name=name, **at)
        yield event("output_item.done", item=item, output_index=index)
    yield event("completed", response=done)


def _message(stop_reason: str | None, *, output_tokens: int) -> dict[str, Any]:
    usage = {"input_tokens": 64, "cache_read_input_tokens": 448, "output_tokens": output_tokens}
    return {"id": "msg_4bf92f3577b34da6", "type": "message", "role": "assistant", "content": [],
            "model": MODEL, "stop_reason": stop_reason, "stop_sequence": None, "usage": usage}  # fmt: skip


def _messages_stream(texts: Sequence[str], calls: Sequence[Call]) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), compact({"type": kind, **fields}))

    yield event("message_start", message=_message(None, output_tokens=0))
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for text in texts:
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
    yield event("content_block_stop", index=0)
    for index, (call, name, pieces) in enumerate(calls, start=1):
        block = {"type": "tool_use", "id": call, "name": name, "input": {}}
        yield event("content_block_start", index=index, content_block=block)
        for piece in pieces:
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    stop = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    yield event("message_delta", delta=stop, usage={"input_tokens": 64, "output_tokens": 64})
    yield event("message_stop")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
