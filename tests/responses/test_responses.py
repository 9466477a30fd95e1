from typing import Any

import pytest

from gateway.domain.request import ToolCall, Usage
from gateway.responses.observed import ObservedResponse
from gateway.responses.responses import ResponsesReader, StoredReader
from gateway.wire.body import UNREADABLE
from tests.wire.shapes import encode, response, responses_events

CALLS = [ToolCall("call_a", "ls"), ToolCall("call_b", "local_shell")]


def stream(*events: Any) -> ObservedResponse:
    reader, observed = ResponsesReader(), ObservedResponse()
    for event in events:
        reader.read_event(encode(event), observed)
    return observed


def body(value: Any) -> ObservedResponse:
    observed = ObservedResponse()
    StoredReader().read_body(encode(value), observed)
    return observed


def test_milestones_come_as_early_as_they_can():
    events = responses_events()
    created, reasoning, call = events[:2], events[2:4], events[7:8]
    assert stream(*created).state_ids == ["resp_1"]
    assert stream(*created).finish_reason is None
    assert not stream(*created, *reasoning).has_first_token
    early = stream(*created, *call)
    assert early.has_first_token and early.tool_calls == CALLS[:1] and not early.has_terminal
    assert stream({"type": "response.reasoning_text.delta", "delta": "x"}).has_first_token


def test_other_ids_for_the_same_items_are_kept_too():
    last = response("completed", [{"type": "function_call", "id": "fc_9", "call_id": "call_z", "name": "ls"}])
    observed = stream(*responses_events()[:8], {"type": "response.completed", "response": last})
    assert [call.id for call in observed.tool_calls] == ["call_a", "call_z"]
    assert observed.state_ids[-2:] == ["fc_1", "fc_9"]


@pytest.mark.parametrize(
    ("kind", "status", "details", "finish"),
    [
        ("completed", "incomplete", {"reason": "max_output_tokens"}, "max_output_tokens"),
        ("incomplete", "incomplete", {}, "incomplete"),
        ("failed", "failed", None, "failed"),
        ("cancelled", "cancelled", None, "cancelled"),
    ],
)
def test_ends(kind, status, details, finish):
    event = {"type": f"response.{kind}", "response": response(status, [], incomplete_details=details)}
    observed = stream(event)
    assert observed.has_terminal and observed.finish_reason == finish


def test_an_error_event():
    observed = stream({"type": "error", "message": "broke"})
    assert observed.has_terminal and observed.finish_reason == "error"


def test_items_that_are_no_calls_for_the_client():
    items = [
        {"type": "web_search_call", "id": "ws_1"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "call_a"},
        {"call_id": "call_b"},
    ]
    assert body(response("completed", items)).tool_calls == []


def test_conversations_and_their_items():
    assert body({"id": "conv_1", "object": "conversation"}).state_ids == ["conv_1"]
    assert body({"object": "list", "data": [{"id": "msg_1"}, {"id": None}]}).state_ids == ["msg_1"]
    assert body({"id": "conv_1", "deleted": True}).state_ids == []


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_a_response_that_runs_in_the_background_has_not_finished(status):
    observed = body(response(status, []))
    assert observed.finish_reason is None and observed.state_ids == ["resp_1"]


def test_usage_without_details():
    assert body(response("completed", [], usage={"input_tokens": 5})).usage == Usage(prompt_tokens=5)


@pytest.mark.parametrize(
    "event", [{}, {"type": "response.queued"}, {"type": "keepalive", "item": {"id": "x"}}]
)
def test_events_that_say_nothing(event):
    observed = stream(event)
    assert observed.answer(200) == ObservedResponse().answer(200) and not observed.has_first_token


@pytest.mark.parametrize("value", [[], {"output": 3}])
def test_malformed_answers_raise_what_the_observer_expects(value):
    with pytest.raises(UNREADABLE):
        body(value)


@pytest.mark.parametrize(
    ("event", "is_plain"),
    [
        (b'data: {"delta":"a","type":"response.output_text.delta"}\n\n', True),
        (b'data: {"delta": "a", "type": "response.reasoning_text.delta"}\n\n', True),
        (b'data: {"delta":"a","type":"response.output_text.done"}\n\n', False),
        (b'data: {"item":{"type":"response.output_text.delta"}}\n\n', False),
        (b'data: {"type":"response.completed"}\n\ndata: {"type":"response.output_text.delta"}\n\n', False),
        (b'data: {"delta":"{","type":"response.function_call_arguments.delta"}\n\n', False),
    ],
)
def test_pieces_of_text_are_passed_over(event, is_plain):
    assert ResponsesReader().take(event, ObservedResponse()) is (False if is_plain else None)
