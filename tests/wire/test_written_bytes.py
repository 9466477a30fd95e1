"""All that a model writes counts where its engine does not count, whoever the reader of it is."""

import json
from typing import Any

import pytest

from gateway.domain.request import Protocol, Work
from gateway.wire.observer import observe

W = "words and so on " * 20


def deltas(index: int, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta}]}


def block(kind: str, **delta: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **delta}}


def of_responses(name: str) -> dict[str, Any]:
    return {"output_index": 0, "delta": W, "type": f"response.{name}.delta"}


CHAT, MESSAGES, RESPONSES = Protocol.CHAT, Protocol.MESSAGES, Protocol.RESPONSES
EVENTS: list[tuple[Protocol, dict[str, Any], int]] = [
    (CHAT, deltas(0, content=W), 1),
    (CHAT, deltas(5, content=W), 1),
    (CHAT, deltas(0, reasoning=W), 1),
    (CHAT, deltas(0, reasoning=W, reasoning_content=W), 1),  # the same, under two names
    (CHAT, deltas(3, reasoning_content=W), 1),
    (CHAT, deltas(0, refusal=W), 1),
    (CHAT, deltas(0, function_call={"arguments": W}), 1),
    (CHAT, deltas(0, audio={"transcript": W}), 1),
    (CHAT, deltas(0, content=[{"type": "thinking", "thinking": W}]), 1),
    (CHAT, {"choices": [{"index": each, "delta": {"content": W}} for each in range(8)]}, 8),
    (Protocol.COMPLETIONS, {"choices": [{"index": 2, "text": W}]}, 1),
    (MESSAGES, block("thinking_delta", thinking=W), 1),
    (RESPONSES, of_responses("output_text"), 1),
    (RESPONSES, of_responses("reasoning_text"), 1),
    (RESPONSES, of_responses("refusal"), 1),
    (RESPONSES, of_responses("function_call_arguments"), 1),  # of a call that is not known
    (RESPONSES, of_responses("custom_tool_call_input"), 1),
]


@pytest.mark.parametrize(("protocol", "event", "texts"), EVENTS)
def test_of_a_stream_all_that_is_written_counts(protocol, event, texts):
    observer = observe(protocol, Work.GENERATE, "text/event-stream", None)
    for _ in range(50):
        observer.feed(f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode())
    expected = 50 * texts * len(W)
    assert expected <= observer.answer(200).said_bytes <= 4 * expected


WHOLE: list[tuple[Protocol, dict[str, Any], int]] = [
    (CHAT, {"choices": [{"index": each, "message": {"content": W, "reasoning": W}} for each in range(4)]}, 8),
    (MESSAGES, {"content": [{"type": "thinking", "thinking": W}, {"type": "text", "text": W}]}, 2),
    (RESPONSES, {"output": [{"type": "reasoning", "summary": [{"text": W}], "content": [{"text": W}]}]}, 2),
    (RESPONSES, {"output": [{"type": "message", "content": [{"type": "refusal", "refusal": W}]}]}, 1),
]


@pytest.mark.parametrize(("protocol", "body", "texts"), WHOLE)
def test_and_of_a_whole_answer(protocol, body, texts):
    observer = observe(protocol, Work.GENERATE, "application/json", None)
    observer.feed(json.dumps(body).encode())
    assert texts * len(W) <= observer.answer(200).said_bytes <= 5 * texts * len(W)
