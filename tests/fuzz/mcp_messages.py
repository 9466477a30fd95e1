"""What MCP clients and servers say, and arguments of calls."""

import json
import random
from typing import Any

from gateway.mcp.answers import AnswerWatch
from gateway.mcp.calls import outcome_of
from gateway.mcp.messages import Kind, cancelled_request, read_message
from gateway.mcp.tools import arguments_key, is_shown_as, read_tool_use
from tests.fuzz.mutation import WORDS, mutate, value

_METHODS = ("tools/call", "tools/list", "notifications/cancelled", "notifications/progress", "ping", "x")


def _message(rng: random.Random) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0"}
    if rng.randrange(3):
        message["method"] = rng.choice(_METHODS)
        message["params"] = rng.choice(
            (
                {"name": rng.choice(WORDS), "arguments": value(rng, 2), "_meta": value(rng, 1)},
                {"requestId": rng.choice((1, "a", 1.5)), "progressToken": value(rng, 1)},
                {"cursor": rng.choice(("2", 2))},
                value(rng, 2),
            )
        )
    else:
        tool = {"name": rng.choice(WORDS), "annotations": {"readOnlyHint": rng.choice((True, False, 1))}}
        message["result"] = rng.choice(({"isError": value(rng, 1)}, {"tools": [tool]}, value(rng, 2)))
    if rng.randrange(3):
        message["id"] = rng.choice((1, "a", "turnpike-1", None, 1.5, value(rng, 1)))
    return message


def make(rng: random.Random) -> tuple[bytes, str, int, str]:
    data = json.dumps(_message(rng)).encode("utf-8", "surrogatepass")
    data = mutate(rng, data) if rng.randrange(2) else data
    kind = rng.choice(("text/event-stream", "application/json"))
    if kind == "text/event-stream":
        data = rng.choice((b"data: ", b"id: 1\ndata:", b"")) + data + rng.choice((b"\n\n", b"\r\n\r\n", b""))
    return data, kind, rng.randrange(1 + len(data)), rng.choice(WORDS)


def check(made: tuple[bytes, str, int, str]) -> None:
    data, kind, cut, word = made
    message = read_message(data)
    assert message.kind is not Kind.REQUEST or message.id is not None
    cancelled_request(message)
    outcome_of(message)
    use = read_tool_use(message.params)
    if use is not None:
        arguments_key(use.arguments)
        is_shown_as(word, use.name)
    whole, cut_up = _watched(kind, [data]), _watched(kind, [data[:cut], data[cut:]])
    assert whole == cut_up, "how bytes are cut changes nothing"


def _watched(kind: str, chunks: list[bytes]) -> list[Any]:
    watch = AnswerWatch(kind, None)
    return [
        message
        for number, chunk in enumerate(chunks, 1)
        for message in watch.feed(chunk, is_last=number == len(chunks))
    ]
