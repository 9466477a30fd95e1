"""What a vLLM server answers, as bytes: a chat completion with a tool call, whole or as a stream."""

import json
from hashlib import blake2b
from typing import Any, Final

from benchmarks.conversations import CALL_ID_BYTES, CALL_ID_PREFIX, MODEL

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
    """A stream of so many events, each a chunk of the response's body; then the end mark."""

    def __init__(self, events: int) -> None:
        """At least four events: the role, text, a tool call in two pieces, the finish reason."""
        words = _TEXT.split()
        call = {"index": 0, "id": _PLACEHOLDER.decode(), "type": "function",
                "function": {"name": "bash", "arguments": ""}}  # fmt: skip
        rest = {"index": 0, "function": {"arguments": _ARGUMENTS}}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += ({"content": " " + words[number % len(words)]} for number in range(events - 4))
        deltas += ({"tool_calls": [call]}, {"tool_calls": [rest]})
        self.chunks = [_event(delta, None) for delta in deltas] + [_event({}, "tool_calls")]
        self._call_at = events - 3
        self._call = self.chunks[self._call_at].split(_PLACEHOLDER)
        self.end = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    def chunk(self, number: int, call_number: int) -> bytes:
        """The event of this number, with a tool call id of its own if it has one."""
        if number != self._call_at:
            return self.chunks[number]
        return call_id(call_number).join(self._call)


def _event(delta: dict[str, Any], finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, "token_ids": None}
    event = {"id": _ID, "object": "chat.completion.chunk", "created": 1767225600, "model": MODEL,
             "choices": [choice]}  # fmt: skip
    return _chunk(b"data: " + _compact(event) + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
