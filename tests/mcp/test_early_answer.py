import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.mcp.early_answer import (
    EarlyAnswer,
    progress_token,
    with_request_id,
)
from gateway.mcp.tools import ToolUse
from gateway.wire.body import UNREADABLE

OURS, STREAM = "turnpike-1", "text/event-stream"
RESULT = b'{"jsonrpc":"2.0","id":"turnpike-1","result":{"a" : [1,\n2]}}'


def told(stream: bytes, token: bytes | None = None, request_id: Any = 7, size: int = 10_000) -> bytes:
    answer = EarlyAnswer(OURS, STREAM)
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    parts = [part for each in chunks for part in answer.feed(each, is_last=False)]
    return b"".join(answer.for_client(part, request_id, Raw(token) if token else None) for part in parts)


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_a_stream_is_the_same_but_for_ids_and_the_numbers_of_events(size):
    server = (
        b"id: 1\ndata: \n\n"
        b"retry: 5\nid: 2\nevent: message\ndata: " + RESULT.replace(b"\n", b"\ndata: ") + b"\n\n"
        b': comment\n\ndata: {"jsonrpc":"2.0","id":"turnpike-1","method":"elicitation/create"}\n\n'
    )
    assert told(server, size=size) == (
        b'event: message\ndata: {"jsonrpc":"2.0","id":7,"result":{"a" : [1,\ndata: 2]}}\n\n'
        b': comment\n\ndata: {"jsonrpc":"2.0","id":"turnpike-1","method":"elicitation/create"}\n\n'
    )


def test_another_answer_s_id_stays():
    assert told(b'data: {"id":"x","result":{}}\n\n') == b'data: {"id":"x","result":{}}\n\n'


def test_progress_is_told_to_who_wants_it():
    progress = (
        b'data: {"method":"notifications/progress","params":{"progressToken":"turnpike-1","progress":2}}\n\n'
    )
    assert told(progress) == b""
    assert told(progress, b'"t"') == (
        b'data: {"method":"notifications/progress","params":{"progressToken":"t","progress":2}}\n\n'
    )
    with pytest.raises(UNREADABLE):
        told(b'data: {"method":"notifications/progress"}\n\n', b"1")


def test_a_body_is_one_message():
    answer = EarlyAnswer(OURS, "application/json; charset=utf-8")
    assert answer.feed(RESULT[:9], is_last=False) == [] and not answer.is_stream and answer.is_readable
    [body] = answer.feed(RESULT[9:], is_last=True)
    assert answer.held_bytes == len(RESULT) and not answer.is_stopped
    assert json.loads(answer.for_client(body, "c", None)) == {**json.loads(RESULT), "id": "c"}
    assert not EarlyAnswer(OURS, "text/html").is_readable


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (b"", (True, None)),
        (b"null", (True, None)),
        (b"{}", (True, None)),
        (b'{"progressToken":5}', (True, Raw(b"5"))),
        (b'{"claudecode/toolUseId":"x","traceparent":"y"}', (True, None)),
        (b'{"x":1,"progressToken":5}', (False, Raw(b"5"))),
        (b"[]", (False, None)),
    ],
)
def test_what_a_call_may_say_beside_its_arguments(meta, expected):
    assert progress_token(ToolUse("x", b"{}", meta)) == expected


def test_a_client_s_cancellation_becomes_one_of_the_gateway_s_request():
    theirs = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4,"reason":"r"}}'
    message = json.loads(with_request_id(theirs, OURS))
    assert message["params"] == {"requestId": OURS, "reason": "r"}
    assert message["method"] == "notifications/cancelled"
