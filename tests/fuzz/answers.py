"""Answers of backends, cut anywhere."""

import json
import random
from typing import Any

from gateway.domain.request import Protocol, Work
from gateway.responses.content import ResponseContent
from gateway.responses.observer import observe
from tests.fuzz.mutation import mutate, pieces, value

_DELTAS: tuple[Any, ...] = (
    {"choices": [{"index": 0, "delta": {"content": "hi"}}]},
    {
        "choices": [
            {
                "index": 0,
                "delta": {
                    "tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{"}}]
                },
            }
        ]
    },
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '"x}\\"": 1}'}}]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}},
    {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
    {"type": "response.output_item.added", "item": {"type": "function_call", "call_id": "c", "name": "f"}},
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"type": "function_call", "call_id": "c", "name": "f"},
    },
    {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"x": {}'},
    {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "}"},
    {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": []}},
    {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3}}},
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": "t", "name": "f"},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "<think>a</think>b"}},
    {"type": "message_stop"},
)
_PROTOCOLS = (Protocol.CHAT, Protocol.COMPLETIONS, Protocol.RESPONSES, Protocol.MESSAGES)


def _event(rng: random.Random) -> bytes:
    said = rng.choice(_DELTAS) if rng.randrange(5) else value(rng)
    ends = rng.choice((b"\n", b"\n", b"\r\n", b"\r"))
    kind = said.get("type") if isinstance(said, dict) else None
    named = b"event: %s%s" % (kind.encode(), ends) if isinstance(kind, str) and kind.isascii() else b""
    text = json.dumps(said).encode() if rng.randrange(12) else b"[DONE]"
    return named + b"data:" + rng.choice((b" ", b"")) + text + ends * 2


def make(rng: random.Random) -> tuple[Protocol, str, list[bytes]]:
    protocol = rng.choice(_PROTOCOLS)
    if rng.randrange(4):
        data, kind = b"".join(_event(rng) for _ in range(rng.randrange(7))), "text/event-stream"
    else:
        data, kind = json.dumps(rng.choice(_DELTAS)).encode(), "application/json"
    return protocol, kind, pieces(rng, mutate(rng, data))


def _observed(protocol: Protocol, kind: str, fed: list[bytes]) -> tuple[Any, ...]:
    said = ResponseContent()
    observer = observe(protocol, Work.GENERATE, kind, None, content=said)
    for piece in fed:
        observer.feed(piece)
    answer = observer.answer(200)
    closed = [(call, observer.seen.arguments_of(at)) for at, call in enumerate(observer.seen.closed_calls)]
    parts = [(each.kind, each.data, each.id, each.name, each.field, each.signature) for each in said.parts]
    seen = (
        observer.seen.has_first_token,
        observer.seen.has_terminal,
        observer.seen.tool_calls,
        closed,
        observer.seen.state_ids,
    )
    return (answer, *seen, parts, said.is_known)


def check(given: tuple[Protocol, str, list[bytes]]) -> None:
    """What an answer says does not depend on how it was cut, and no bytes raise."""
    protocol, kind, fed = given
    assert _observed(protocol, kind, fed) == _observed(protocol, kind, [b"".join(fed)])
