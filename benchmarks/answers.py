"""What a vLLM server answers, as bytes: a text and a tool call, streamed in each protocol, or a whole chat
completion."""

import itertools
import json
from collections.abc import Iterator
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


def call_id(number: int) -> bytes:
    """As engines make them: nobody can tell the number."""
    return CALL_ID_PREFIX + blake2b(b"%d" % number, digest_size=16).hexdigest().encode()


def find_call_id(body: bytes) -> bytes | None:
    """The id of the tool call in an answer."""
    start = body.find(CALL_ID_PREFIX)
    return body[start : start + CALL_ID_BYTES] if start >= 0 else None


def completion_parts() -> tuple[bytes, bytes]:
    """A whole answer, up to and from the tool call's id."""
    call = {"id": _PLACEHOLDER.decode(), "type": "function",
            "function": {"name": "bash", "arguments": _ARGUMENTS}}  # fmt: skip
    message = {"role": "assistant", "content": _TEXT, "refusal": None, "annotations": None, "audio": None,
               "function_call": None, "tool_calls": [call], "reasoning": None}  # fmt: skip
    usage = {"prompt_tokens": 512, "total_tokens": 576, "completion_tokens": 64,
             "prompt_tokens_details": {"cached_tokens": 448}}  # fmt: skip
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls",
              "stop_reason": None, "token_ids": None}  # fmt: skip
    answer = {"id": _ID, "object": "chat.completion", "created": 1767225600, "model": MODEL,
              "choices": [choice], "service_tier": None, "system_fingerprint": None, "usage": usage,
              "prompt_logprobs": None, "prompt_token_ids": None, "kv_transfer_params": None}  # fmt: skip
    body = JSON_HEAD + _compact(answer)
    before, after = body.split(_PLACEHOLDER)
    length = len(body) - len(JSON_HEAD)
    return before.replace(b"%d", b"%d" % length, 1), after


class StreamParts:
    """A stream in which so many events say something, each a chunk of the response's body."""

    def __init__(self, events: int, protocol: str = CHAT.name) -> None:
        """Of the events three in four are text, and the others a call's arguments: at least four."""
        self.chunks = [_chunk(event) for event in _STREAMS[protocol](*_pieces(events))]
        self.chunks[-1] += b"0\r\n\r\n"
        self._calls = {
            at: chunk.split(_PLACEHOLDER) for at, chunk in enumerate(self.chunks) if _PLACEHOLDER in chunk
        }

    @property
    def events(self) -> int:
        """Those with an object; a chat's end mark is none."""
        return sum(chunk.count(b"data: {") for chunk in self.chunks)

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
    whole = json.dumps({"command": command})
    size = -(-len(whole) // of_call)
    return texts, [whole[at : at + size] for at in range(0, len(whole), size)]


def _chat_stream(texts: list[str], arguments: list[str]) -> Iterator[bytes]:
    def event(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason,
                  "token_ids": None}  # fmt: skip
        said = {"id": _ID, "object": "chat.completion.chunk", "created": 1767225600, "model": MODEL,
                "choices": [choice]}  # fmt: skip
        return b"data: %s\n\n" % _compact(said)

    yield event({"role": "assistant", "content": ""})
    for text in texts:
        yield event({"content": text})
    call = {"id": _PLACEHOLDER.decode(), "type": "function", "index": 0, "function": {"name": "bash"}}
    yield event({"tool_calls": [call]})
    for piece in arguments:
        yield event({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    yield event({}, "tool_calls")
    yield b"data: [DONE]\n\n"


def _responses_stream(texts: list[str], arguments: list[str]) -> Iterator[bytes]:
    numbers = itertools.count()

    def event(kind: str, **fields: Any) -> bytes:
        said = {**fields, "sequence_number": next(numbers), "type": f"response.{kind}"}
        return b"event: response.%s\ndata: %s\n\n" % (kind.encode(), _compact(said))

    response: dict[str, Any] = {
        "id": "resp_4bf92f3577b34da6a3ce929d0e0e4736", "created_at": 1767225600, "model": MODEL,
        "object": "response", "output": [], "status": "in_progress", "tools": [],
    }  # fmt: skip
    message: dict[str, Any] = {
        "id": "msg_4bf92f3577b34da6",
        "role": "assistant",
        "type": "message",
        "content": [],
    }
    text, whole = "".join(texts), "".join(arguments)
    part: dict[str, Any] = {"annotations": [], "text": "", "type": "output_text", "logprobs": None}
    at = {"item_id": message["id"], "output_index": 0}
    call: dict[str, Any] = {
        "arguments": "", "call_id": _PLACEHOLDER.decode(), "name": "bash", "type": "function_call",
        "id": "fc_4bf92f3577b34da6", "status": "in_progress",
    }  # fmt: skip
    call_at = {"item_id": call["id"], "output_index": 1}
    yield event("created", response=response)
    yield event("in_progress", response=response)
    yield event("output_item.added", item=message, output_index=0)
    yield event("content_part.added", content_index=0, part=part, **at)
    for piece in texts:
        yield event("output_text.delta", content_index=0, delta=piece, logprobs=[], **at)
    part = {**part, "text": text}
    message = {**message, "content": [part], "status": "completed"}
    yield event("output_text.done", content_index=0, text=text, logprobs=[], **at)
    yield event("content_part.done", content_index=0, part=part, **at)
    yield event("output_item.done", item=message, output_index=0)
    yield event("output_item.added", item=call, output_index=1)
    for piece in arguments:
        yield event("function_call_arguments.delta", delta=piece, **call_at)
    call = {**call, "arguments": whole, "status": "completed"}
    yield event("function_call_arguments.done", arguments=whole, name="bash", **call_at)
    yield event("output_item.done", item=call, output_index=1)
    usage = {"input_tokens": 512, "input_tokens_details": {"cached_tokens": 448}, "output_tokens": 64,
             "total_tokens": 576}  # fmt: skip
    whole_response = {**response, "output": [message, call], "status": "completed", "usage": usage}
    yield event("completed", response=whole_response)


def _messages_stream(texts: list[str], arguments: list[str]) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), _compact({"type": kind, **fields}))

    usage = {"input_tokens": 64, "cache_read_input_tokens": 448, "output_tokens": 0}
    message: dict[str, Any] = {
        "id": "msg_4bf92f3577b34da6", "type": "message", "role": "assistant", "content": [],
        "model": MODEL, "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    call = {"type": "tool_use", "id": _PLACEHOLDER.decode(), "name": "bash", "input": {}}
    yield event("message_start", message=message)
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for text in texts:
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
    yield event("content_block_stop", index=0)
    yield event("content_block_start", index=1, content_block=call)
    for piece in arguments:
        delta = {"type": "input_json_delta", "partial_json": piece}
        yield event("content_block_delta", index=1, delta=delta)
    yield event("content_block_stop", index=1)
    stop = {"stop_reason": "tool_use", "stop_sequence": None}
    yield event("message_delta", delta=stop, usage={"input_tokens": 64, "output_tokens": 64})
    yield event("message_stop")


_STREAMS: Final = {
    CHAT.name: _chat_stream,
    RESPONSES.name: _responses_stream,
    MESSAGES.name: _messages_stream,
}


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
