from typing import Any

import pytest

from gateway.domain.request import ToolCall, Usage
from gateway.responses import chat as module
from gateway.responses.chat import ChatReader
from gateway.responses.observed import ObservedResponse
from gateway.wire.body import UNREADABLE
from tests.wire.shapes import call, encode

A, B = ToolCall("call_a", "ls"), ToolCall("call_b", "cat")


def stream(*events: Any) -> ObservedResponse:
    reader, sighting = ChatReader(), ObservedResponse()
    for event in events:
        reader.read_event(event if isinstance(event, bytes) else encode(event), sighting)
    return sighting


def chunk(*choices: Any, **more: Any) -> dict[str, Any]:
    return {"choices": list(choices), **more}


def piece(index: int | None = 0, **fields: Any) -> dict[str, Any]:
    place = {} if index is None else {"index": index}
    return {"index": 0, "delta": {"tool_calls": [{**place, **fields}]}}


def named(name: str | None) -> dict[str, Any]:
    return {"name": name, "arguments": ""}


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"content": "x"}},
        {"delta": {"content": ["thinking"]}},
        {"delta": {"reasoning": "x"}},
        {"delta": {"reasoning_content": "x"}},
        {"delta": {"refusal": "x"}},
        {"delta": {"function_call": {"name": "f"}}},
        {"delta": {"tool_calls": [{"index": 0}]}},
        {"text": "x"},
    ],
)
def test_the_first_token(choice):
    assert stream(chunk(choice)).has_first_token


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"role": "assistant", "content": ""}},
        {"delta": {"content": None, "tool_calls": []}},
        {"delta": {}},
        {"delta": None, "text": ""},
        {},
    ],
)
def test_no_token_yet(choice):
    assert not stream(chunk(choice), {"choices": None}).has_first_token


def test_a_call_appears_with_its_id_and_name():
    reader, sighting = ChatReader(), ObservedResponse()
    reader.read_event(encode(chunk(piece(id="call_a", function=named(None)))), sighting)
    assert sighting.tool_calls == []
    reader.read_event(encode(chunk(piece(function=named("ls")))), sighting)
    assert sighting.tool_calls == [A]


@pytest.mark.parametrize(
    "pieces",
    [
        # index 0 for every call
        [piece(0, id="call_a", function=named("ls")), piece(0, id="call_b", function=named("cat"))],
        # no index at all
        [piece(None, id="call_a", function=named("ls")), piece(None, id="call_b", function=named("cat"))],
        # the id repeated with every piece
        [piece(0, id="call_a", function=named("ls"))] * 2
        + [piece(1, id="call_b", function=named("cat"))] * 2,
        # an empty id where none is repeated
        [
            piece(0, id="call_a", function=named("ls")),
            piece(0, id="", function=named("")),
            piece(1, id="call_b", custom=named("cat")),
        ],
    ],
)
def test_engines_differ_in_how_they_number_pieces(pieces):
    assert stream(*map(chunk, pieces)).tool_calls == [A, B]


def test_a_new_call_does_not_take_the_name_of_the_old_one():
    first, second = piece(id="call_a", function=named("ls")), piece(id="call_b")
    assert stream(chunk(first), chunk(second)).tool_calls == [A]
    assert stream(chunk(first), chunk(second), chunk(piece(function=named("cat")))).tool_calls == [A, B]


def test_choices_are_kept_apart():
    other = {"index": 1, "delta": {"tool_calls": [{"index": 0, "id": "call_b", "function": named(None)}]}}
    late = {"index": 1, "delta": {"tool_calls": [{"index": 0, "function": named("cat")}]}}
    assert stream(chunk(piece(id="call_a", function=named("ls")), other), chunk(late)).tool_calls == [A, B]


def test_pieces_without_a_call_are_nobodys():
    assert stream(chunk(piece(function=named("ls"))), chunk(piece())).tool_calls == []


def test_open_calls_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_CALLS", 1)
    pieces = [piece(0, id="call_a"), piece(1, id="call_b"), piece(1, function=named("cat"))]
    assert stream(*map(chunk, pieces), chunk(piece(0, function=named("ls")))).tool_calls == [A]


def test_an_error_inside_a_stream():
    sighting = stream(chunk({"delta": {"content": "x"}}), {"error": {"message": "broke", "code": 500}})
    assert sighting.finish_reason == "error" and sighting.error_status == 500
    assert stream(chunk({"finish_reason": "stop"}), chunk(error=None)).finish_reason == "stop"


def test_usage_without_details():
    usage = {"prompt_tokens": 5, "completion_tokens": None, "prompt_tokens_details": None}
    assert stream(chunk(usage=usage), chunk(usage=None)).usage == Usage(prompt_tokens=5)


def test_legacy_messages_without_delta():
    assert stream(chunk({"message": {"tool_calls": [call("call_a")]}})).tool_calls == [A]


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b"[DONE", b'{"choices": 3}', b'{"choices": [{"delta": {"tool_calls": 1}}]}']
)
def test_malformed_events_raise_what_the_observer_expects(data):
    with pytest.raises(UNREADABLE):
        stream(data)


OTHERS = [
    chunk({"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}),
    chunk({"index": 0, "delta": {"content": "b"}}, usage={"completion_tokens": 1}),
    chunk({"index": 0, "delta": {"content": "b"}}, error={"message": "x"}),
    chunk({"index": 1, "delta": {"content": "b"}}),
    chunk({"index": 0, "delta": {"content": "b"}}, {"index": 1, "delta": {"content": "c"}}),
    chunk({"index": 0, "delta": {"content": "b", "reasoning": "c"}}),
    chunk({"index": 0, "delta": {"content": "b", "tool_calls": [{"index": 0}]}}),
    chunk({"index": 0, "delta": {"tool_calls": [call("call_a")]}}),
    chunk({"index": 0, "delta": {"content": ["b"]}}),
    chunk({"index": 0, "message": {"content": "b"}}),
    {},
]


def block(event: dict[str, Any]) -> bytes:
    return b"data: " + encode(event) + b"\n\n"


@pytest.mark.parametrize("other", OTHERS)
def test_events_that_say_more_than_a_piece_are_never_known_again(other):
    reader, sighting = ChatReader(), ObservedResponse()
    reader.learn(block(other))
    assert reader.take(block(other), sighting) is None
    plain = block(chunk({"index": 0, "delta": {"content": "a"}}))
    reader.learn(plain)
    assert reader.take(plain, sighting) is False
    assert reader.take(block(other), sighting) is None
    assert reader.take(b"data: [DONE]\n\n", sighting) is None
    assert sighting.answer(200).content_bytes == 1
