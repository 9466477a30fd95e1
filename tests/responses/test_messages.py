from typing import Any

import pytest

from gateway.domain.request import Usage
from gateway.responses.messages import MessagesReader
from gateway.responses.observed import ObservedResponse
from gateway.wire.body import UNREADABLE
from tests.wire.shapes import encode, message_events

USAGE = Usage(prompt_tokens=30, cached_tokens=16, output_tokens=7)


def stream(*events: Any) -> ObservedResponse:
    reader, observed = MessagesReader(), ObservedResponse()
    for event in events:
        reader.read_event(encode(event), observed)
    return observed


def body(value: Any) -> ObservedResponse:
    observed = ObservedResponse()
    MessagesReader().read_body(value if isinstance(value, bytes) else encode(value), observed)
    return observed


def test_the_first_token():
    text = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}
    assert not stream(
        *message_events()[:2], text, {"type": "message_delta"}, {"type": "unheard_of"}
    ).has_first_token
    assert stream({"type": "content_block_delta", "delta": {"type": "thinking_delta"}}).has_first_token
    assert stream({"type": "content_block_start", "content_block": {"type": "tool_use"}}).has_first_token


def test_usage_is_cumulative_and_comes_in_parts():
    first = {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 10, "cache_creation_input_tokens": 4}},
    }
    last = {"type": "message_delta", "usage": {"output_tokens": 7, "cache_read_input_tokens": 16}}
    assert stream(first).usage == Usage(prompt_tokens=14)
    assert stream(first, last).usage == USAGE
    assert stream(last).usage == Usage(cached_tokens=16, output_tokens=7)
    assert stream({"type": "message_start", "message": {}}).usage == Usage()


@pytest.mark.parametrize(
    "event",
    [{"type": "message_start"}, {"type": "content_block_start"}, {"type": "message_delta", "delta": {}}, {}],
)
def test_events_without_their_parts(event):
    observed = stream(event)
    assert observed.answer(200) == ObservedResponse().answer(200) and not observed.has_first_token


def test_errors():
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "later"}}
    assert stream(error).finish_reason == body(error).finish_reason == "error"
    assert stream(error).has_terminal


@pytest.mark.parametrize("value", [[], 3, {"content": 3}])
def test_malformed_answers_raise_what_the_observer_expects(value):
    with pytest.raises(UNREADABLE):
        body(value)
