import gzip
import itertools
import json
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.request import Answer, Protocol, ToolCall, Usage, Utterance, Work
from gateway.responses import observer as module
from gateway.responses.observer import ResponseObserver, observe
from gateway.wire.hashing import text_hash
from tests.examples import examples
from tests.wire.shapes import (
    RESPONSE_USAGE,
    chat_body,
    chat_stream,
    encode,
    message_body,
    messages_stream,
    output_items,
    response,
    responses_stream,
    sse,
)

STREAM, JSON = "text/event-stream; charset=utf-8", "application/json"
USAGE = Usage(prompt_tokens=30, cached_tokens=16, output_tokens=7)
CALLS = (ToolCall("call_a", "ls"), ToolCall("call_b", "cat"))
SHELL_CALLS = (ToolCall("call_a", "ls"), ToolCall("call_b", "local_shell"))
STATE_IDS = ("resp_1", "rs_1", "msg_1", "fc_1", "ls_1")


def answer(
    finish_reason: str, calls: tuple[ToolCall, ...] = CALLS, state_ids: tuple[str, ...] = ()
) -> Answer:
    return Answer(
        status=200,
        tool_calls=calls,
        state_ids=state_ids,
        usage=USAGE,
        finish_reason=finish_reason,
        has_terminal=True,
    )


RESPONSE = encode(response("completed", output_items(), usage=RESPONSE_USAGE))
CASES = [
    (Protocol.CHAT, STREAM, chat_stream(), answer("tool_calls")),
    (Protocol.CHAT, JSON, chat_body(), answer("tool_calls")),
    (
        Protocol.RESPONSES,
        STREAM,
        responses_stream(),
        answer("completed", SHELL_CALLS, (*STATE_IDS, "conv_1")),
    ),
    (Protocol.RESPONSES, JSON, RESPONSE, answer("completed", SHELL_CALLS, STATE_IDS)),
    (Protocol.MESSAGES, STREAM, messages_stream(), answer("tool_use")),
    (Protocol.MESSAGES, JSON, message_body(), answer("tool_use")),
]
PACKERS: dict[str | None, Callable[[bytes], bytes]] = {
    None: bytes,
    "identity": bytes,
    "gzip": gzip.compress,
    "Deflate": zlib.compress,
}


def watch(observer: ResponseObserver, stream: bytes, at: list[int]) -> Answer:
    edges = [0, *sorted(min(a, len(stream)) for a in at), len(stream)]
    for a, b in itertools.pairwise(edges):
        observer.feed(stream[a:b])
    return plain(observer.answer(200))


def plain(answer: Answer) -> Answer:
    """Without what was said, and what it is called, which have tests of their own."""
    return msgspec.structs.replace(
        answer, utterance=Utterance(), content_bytes=0, response_id=None, model=None
    )


@pytest.mark.parametrize(("protocol", "content_type", "stream", "expected"), CASES)
@pytest.mark.parametrize("coding", PACKERS)
@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_chunks_do_not_matter(protocol, content_type, stream, expected, coding, data):
    packed = PACKERS[coding](stream)
    at = data.draw(st.lists(st.integers(0, len(packed)), max_size=12))
    observer = observe(protocol, Work.GENERATE, content_type, coding)
    assert watch(observer, packed, at) == expected
    assert observer.seen.has_first_token and observer.seen.has_terminal
    assert tuple(observer.seen.tool_calls) == expected.tool_calls
    assert tuple(observer.seen.state_ids) == expected.state_ids
    assert tuple(observer.seen.closed_calls) == expected.tool_calls
    whole = observe(protocol, Work.GENERATE, content_type, coding)
    whole.feed(packed)
    assert observer.answer(200).utterance == whole.answer(200).utterance


@pytest.mark.parametrize(("protocol", "content_type", "stream", "expected"), CASES)
@settings(deadline=None)
@given(st.data())
def test_a_cut_answer_tells_what_was_seen_and_no_more(protocol, content_type, stream, expected, data):
    cut_at = data.draw(st.integers(0, len(stream) - 3))
    observer = observe(protocol, Work.GENERATE, content_type, None)
    seen = watch(observer, stream[:cut_at], data.draw(st.lists(st.integers(0, cut_at), max_size=5)))
    assert expected.tool_calls[: len(seen.tool_calls)] == seen.tool_calls
    assert set(seen.state_ids) <= set(expected.state_ids)
    assert not seen.has_terminal


@pytest.mark.parametrize(("protocol", "content_type", "stream", "expected"), CASES)
def test_errors_mint_nothing(protocol, content_type, stream, expected):
    observer = observe(protocol, Work.GENERATE, content_type, None)
    observer.feed(stream)
    assert observer.answer(400) == Answer(status=400)
    assert plain(observer.answer(200)) == expected


@given(
    st.sampled_from(Protocol),
    st.sampled_from(Work),
    st.sampled_from([STREAM, JSON, "text/plain", ""]),
    st.sampled_from([None, "gzip", "deflate", "br", ""]),
    st.lists(st.binary() | st.sampled_from([b"data: ", b"{", b"}", b"\n\n", b"[DONE]", b'{"choices":[{}]}'])),
)
def test_nothing_that_a_backend_sends_raises(protocol, work, content_type, coding, chunks):
    observer = observe(protocol, work, content_type, coding)
    for chunk in chunks:
        observer.feed(chunk)
    assert observer.answer(200).status == 200


@pytest.mark.parametrize(
    ("protocol", "work", "content_type", "coding"),
    [
        (Protocol.MCP, Work.LIGHT, JSON, None),
        (Protocol.OTHER, Work.TUNNEL, JSON, None),
        (Protocol.CHAT, Work.GENERATE, "application/cbor", None),
        (Protocol.CHAT, Work.GENERATE, STREAM, "br"),
        (Protocol.CHAT, Work.GENERATE, STREAM, "gzip, gzip"),
    ],
)
def test_what_we_cannot_read_is_not_watched(protocol, work, content_type, coding):
    observer = observe(protocol, work, content_type, coding)
    assert (type(observer) is ResponseObserver) is (work is not Work.GENERATE)
    assert watch(observer, chat_stream(), []) == Answer(status=200, usage=observer.answer(200).usage)
    assert not observer.seen.has_first_token and not observer.seen.has_terminal
    assert observer.seen.tool_calls == [] and observer.seen.state_ids == []


def test_a_new_conversation():
    observer = observe(Protocol.RESPONSES, Work.STATE, JSON, None)
    assert watch(observer, b'{"id": "conv_1", "object": "conversation"}', []).state_ids == ("conv_1",)


def test_milestones_come_with_the_event_that_tells_them():
    observer = observe(Protocol.CHAT, Work.GENERATE, STREAM, None)
    seen = []
    for event in chat_stream().split(b"\n\n")[:-1]:
        observer.feed(event + b"\n\n")
        seen.append(
            (observer.seen.has_first_token, len(observer.seen.tool_calls), observer.seen.has_terminal)
        )
    assert [first for first, _, _ in seen] == [False] + [True] * 9
    assert [calls for _, calls, _ in seen] == [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]
    assert [last for _, _, last in seen] == [False] * 9 + [True]


def test_a_whole_answer_is_read_when_its_last_byte_comes():
    observer = observe(Protocol.CHAT, Work.GENERATE, JSON, None)
    body = chat_body()
    observer.feed(body[:-1])
    assert not observer.seen.has_first_token
    observer.feed(body[-1:])
    assert observer.seen.has_first_token and observer.seen.has_terminal and len(observer.seen.tool_calls) == 2
    observer.feed(b"\n")
    assert plain(observer.answer(200)) == answer("tool_calls")


def test_what_follows_a_whole_answer_spoils_it():
    observer = observe(Protocol.CHAT, Work.GENERATE, JSON, None)
    observer.feed(chat_body())
    observer.feed(b"{}")
    assert plain(observer.answer(200)) == Answer(status=200, usage=answer("stop").usage)


def test_a_huge_body_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "MAX_BODY_BYTES", len(chat_body()))
    assert watch(observe(Protocol.CHAT, Work.GENERATE, JSON, None), chat_body(), []) == answer("tool_calls")
    for at in ([], [10], [len(chat_body())]):
        observer = observe(Protocol.CHAT, Work.GENERATE, JSON, None)
        assert watch(observer, chat_body() + b" ", at) == Answer(status=200, usage=answer("stop").usage)
        assert not observer.seen.has_first_token


def test_events_that_cannot_be_read_are_passed_over():
    noise = b": ping\n\ndata: {broken\n\nevent: x\n\ndata: 3\n\n"
    observer = observe(Protocol.CHAT, Work.GENERATE, STREAM, None)
    assert watch(observer, noise + chat_stream().replace(b"\n\n", b"\n\n" + noise), []) == answer(
        "tool_calls"
    )


def test_a_stream_without_its_last_empty_line():
    assert watch(observe(Protocol.CHAT, Work.GENERATE, STREAM, None), chat_stream()[:-2], []) == answer(
        "tool_calls"
    )


TASK: dict[str, Any] = {"prompt": "SUBTASK: list the files and report", "n": [1, {"x": "of all the files"}]}
SAID = "I will look at it now, and report."


def _responses_events() -> list[dict]:
    text = {"type": "output_text", "text": SAID}
    items = [
        {"type": "message", "id": "m", "role": "assistant", "content": [text]},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "f", "arguments": json.dumps(TASK)},
        {
            "type": "custom_tool_call",
            "id": "g",
            "call_id": "d",
            "name": "g",
            "input": "a plain long text here",
        },
    ]
    done = [{"type": "response.output_item.done", "item": item} for item in items]
    return [*done, {"type": "response.completed", "response": {"id": "r", "output": items}}]


def _chat_message(arguments: str) -> dict:
    function = {"index": 0, "id": "c", "function": {"name": "f", "arguments": arguments}}
    custom = {"index": 1, "id": "d", "custom": {"name": "g", "input": "a plain long text here"}}
    return {"content": [{"type": "text", "text": SAID}], "tool_calls": [function, custom]}


def _blocks(task: dict) -> list[dict]:
    return [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "text", "text": SAID},
        {"type": "tool_use", "id": "c", "name": "f", "input": task},
        {"type": "tool_use", "id": "d", "name": "g", "input": {"x": "a plain long text here"}},
    ]


def _messages_events() -> list[dict]:
    def delta(index: int, **fields) -> dict:
        return {"type": "content_block_delta", "index": index, "delta": fields}

    arguments = json.dumps(TASK)
    starts = [
        {"type": "content_block_start", "index": at, "content_block": {**block, "text": "", "input": {}}}
        for at, block in enumerate(_blocks({}))
    ]
    pieces = [delta(2, partial_json=arguments[:20]), delta(2, partial_json=arguments[20:])]
    pieces += [delta(1, text=SAID[:9]), delta(1, text=SAID[9:]), {"type": "content_block_delta", "index": 1}]
    return [*starts, *pieces, delta(3, partial_json=json.dumps({"x": "a plain long text here"}))]


@pytest.mark.parametrize(
    ("protocol", "content_type", "stream"),
    [
        (Protocol.RESPONSES, STREAM, sse(_responses_events(), named=True)),
        (Protocol.RESPONSES, JSON, encode(_responses_events()[-1]["response"])),
        (Protocol.CHAT, JSON, encode({"choices": [{"message": _chat_message(json.dumps(TASK))}]})),
        (
            Protocol.CHAT,
            STREAM,
            sse([{"choices": [{"delta": _chat_message(json.dumps(TASK))}]}], named=False),
        ),
        (Protocol.MESSAGES, JSON, encode({"type": "message", "content": _blocks(TASK)})),
        (Protocol.MESSAGES, STREAM, sse(_messages_events(), named=True)),
    ],
)
def test_what_was_said(protocol, content_type, stream):
    observer = observe(protocol, Work.GENERATE, content_type, None)
    observer.feed(stream)
    said = observer.answer(200).utterance
    assert said.text == text_hash(SAID) and said.chars >= len(SAID) and said.tool_call_style.opening


def test_the_first_of_several_answers_is_the_one():
    choices = [{"index": 1, "text": "No, not at all."}, {"index": 0, "text": "Yes, of course."}]
    observer = observe(Protocol.COMPLETIONS, Work.GENERATE, JSON, None)
    observer.feed(encode({"choices": choices}))
    assert observer.answer(200).utterance.text == text_hash("Yes, of course.")


@pytest.mark.parametrize(
    "odd",
    [
        b": ping\n\n",
        b"data:{}\n\n",
        b"event: x\ndata: {}\n\n",
        b"data: [\n\n",
        b"\n\n",
        b"data: {},{}\n\n",
        b"data: 1\n\n",
    ],
    ids=repr,
)
@pytest.mark.parametrize("at", [1, 40, 99])
def test_many_dull_events_read_together_say_the_same(odd, at):
    pieces = [f" word{number}\n\n" for number in range(100)]
    events = [
        sse([{"choices": [{"index": 0, "delta": {"content": piece}}]}], named=False) for piece in pieces
    ]
    events.insert(at, odd)
    one_by_one, together = (observe(Protocol.CHAT, Work.GENERATE, STREAM, None) for _ in range(2))
    for event in events:
        one_by_one.feed(event)
    together.feed(b"".join(events))
    for observer in (one_by_one, together):
        assert observer.answer(200).utterance.text == text_hash("".join(pieces))
