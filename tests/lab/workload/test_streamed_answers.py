"""Event streams, put together."""

import json
from typing import Any

from lab.workload.streamed_answers import stream_events, whole_completion, whole_response


def _stream(*events):
    return "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in events)


def _chunk(delta=None, finish=None, index=0, **more):
    return {
        "id": "chatcmpl-1",
        "choices": [{"index": index, "delta": delta, "finish_reason": finish}],
        **more,
    }


def test_events_that_are_objects_are_kept():
    text = ": ping\n\n" + _stream({"a": 1}, "[DONE]", "[]", "{broken") + 'data: {"b": 2}'
    assert stream_events(text) == [{"a": 1}, {"b": 2}]


def test_chunks_add_up_to_a_message():
    def call(index, **function):
        return {"index": index, "function": function}

    completion = whole_completion(
        stream_events(
            _stream(
                {"id": "", "choices": []},
                _chunk({"role": "assistant", "content": "He"}),
                _chunk({"content": "llo"}),
                _chunk({"content": "other"}, index=1),
                _chunk({"tool_calls": [{**call(1, name="b", arguments=""), "id": "call_b"}]}),
                _chunk({"tool_calls": [{**call(0, name="a", arguments='{"x"'), "id": "call_a"}]}),
                _chunk({"tool_calls": [call(0, arguments=":1}"), {"index": 1}]}),
                _chunk(None, "tool_calls"),
                "[DONE]",
            )
        )
    )
    assert completion == {
        "id": "chatcmpl-1",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "Hello",
                    "tool_calls": [
                        {
                            "id": "call_a",
                            "type": "function",
                            "function": {"name": "a", "arguments": '{"x":1}'},
                        },
                        {"id": "call_b", "type": "function", "function": {"name": "b", "arguments": ""}},
                    ],
                },
            }
        ],
    }


def test_a_stream_without_chunks_is_no_completion():
    assert whole_completion([]) is None
    assert whole_completion([{"choices": None}]) is None


def test_the_last_response_object_counts():
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "r", "output": []}},
        {"type": "x"},
    ]
    assert whole_response(events) == {"id": "r", "output": []}
    assert whole_response([*events, {"response": {"id": "r", "output": [1]}}]) == {"id": "r", "output": [1]}
    assert whole_response([{"response": None}]) is None
