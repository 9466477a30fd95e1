"""Streams: events that mean nothing or end what failed, what answers say, and all that models write."""

import itertools
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.request import Protocol, Work
from gateway.errors import error_body
from gateway.responses.content import Kind, ResponseContent
from gateway.responses.observer import observe
from gateway.wire.sse import MAX_EVENT_BYTES, EventSplitter, event_data
from gateway.wire.sse_keepalive import error_event, is_codex, keep_alive
from tests.wire.shapes import chat_stream, messages_stream


def split(*chunks: bytes) -> list[bytes]:
    """The data of all events, as a reader sees them."""
    splitter = EventSplitter()
    blocks = [block for chunk in chunks for block in splitter.feed(chunk)]
    return [data for block in [*blocks, *splitter.finish()] if (data := event_data(block))]


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(a, len(stream)) for a in at), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("make", [chat_stream, messages_stream])
def test_line_ends_do_not_matter(make, end):
    expected = split(make())
    assert len(expected) >= 10
    assert split(make(end)) == expected
    assert split(*(bytes([byte]) for byte in make(end))) == expected


@given(
    st.lists(
        st.sampled_from([b"data: a", b"data:b", b"data", b":c", b"event: e", b"\n", b"\r", b"\r\n", b"\n\n"])
    ),
    st.data(),
)
def test_chunks_do_not_matter(pieces, data):
    stream = b"".join(pieces)
    at = data.draw(st.lists(st.integers(0, len(stream))))
    assert split(*cut(stream, at)) == split(stream)


def test_a_line_end_may_be_cut_in_two_and_nothing_come_between():
    assert split(b"data: a\r", b"", b"\ndata: b\r", b"\n\r\n") == [b"a\nb"]


def test_an_event_comes_out_with_the_chunk_that_ends_it():
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n") == []
    assert splitter.feed(b"\ndata: 2") == [b"data: 1"]
    assert splitter.feed(b"\n\ndata: 3\n\n") == [b"data: 2", b"data: 3"]
    assert splitter.finish() == []


@pytest.mark.parametrize(
    ("block", "data"),
    [
        (b"data: x", b"x"),
        (b"data:x", b"x"),
        (b"data:  x", b" x"),
        (b"event: e\ndata: x\nid: 1", b"x"),
        (b"data: x\ndata: y", b"x\ny"),
        (b"\xef\xbb\xbfdata: x", b"x"),
        (b": comment", b""),
        (b"event: ping", b""),
        (b"data", b""),
        (b"datax: y", b""),
        (b"\n", b""),
    ],
)
def test_event_data(block, data):
    assert event_data(block) == data


def test_an_event_of_the_largest_size_passes():
    event = b"data: " + b"x" * (MAX_EVENT_BYTES - 6)
    for chunks in ([event + b"\n\n"], [event, b"\n", b"\n"], [event + b"\n", b"\ndata: y\n\n"]):
        splitter = EventSplitter()
        assert next(block for chunk in chunks for block in splitter.feed(chunk)) == event
        assert not splitter.is_stopped


def test_a_larger_event_stops_the_splitter_wherever_it_is_cut():
    event = b"data: " + b"x" * (MAX_EVENT_BYTES - 5)
    for chunks in (
        [b"data: 1\n\n" + event + b"\n\ndata: 2\n\n"],
        [b"data: 1\n\n" + event, b"\n", b"\n", b"data: 2\n\n"],
        [b"data: 1\n\n", event[:9], event[9:] + b"\n\ndata: 2\n\n"],
        [b"data: 1\n\n" + event + b"xx", b"x" * 9],
    ):
        splitter = EventSplitter()
        assert [block for chunk in chunks for block in splitter.feed(chunk)] == [b"data: 1"]
        assert splitter.is_stopped and splitter.finish() == []


def test_many_small_events_in_one_large_chunk_are_not_one_large_event():
    assert len(split(b"data: x\n\n" * (MAX_EVENT_BYTES // 8))) == MAX_EVENT_BYTES // 8


PROTOCOLS = (Protocol.CHAT, Protocol.COMPLETIONS, Protocol.RESPONSES, Protocol.MESSAGES)


def events(data: bytes) -> list[bytes]:
    splitter = EventSplitter()
    found = [event_data(block) for block in splitter.feed(data)]
    assert splitter.is_between_events
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_follows_keep_alives_is_read_as_it_is_and_none_is_an_event_without_data(protocol):
    """Stainless's decoder for Go fails of such an event."""
    told = events(keep_alive(protocol) * 2 + b"data: {}\n\n")
    assert all(told) and told[-1] == b"{}"


def test_clients_get_what_they_count_and_bear():
    for protocol in (Protocol.CHAT, Protocol.COMPLETIONS, Protocol.RESPONSES):
        assert keep_alive(protocol) == b": keep-alive\n"
    assert json.loads(events(keep_alive(Protocol.RESPONSES, is_codex=True))[0]) == {"type": "keepalive"}
    assert json.loads(events(keep_alive(Protocol.MESSAGES))[0]) == {"type": "ping"}


def test_a_backends_error_becomes_an_event():
    body = b'{"error":{"message":"too long","type":"BadRequestError","param":"x","code":400}}'
    told, done = events(error_event(Protocol.CHAT, 400, body))
    assert json.loads(told) == json.loads(body) and done == b"[DONE]"
    (told,) = events(error_event(Protocol.RESPONSES, 400, body))
    assert json.loads(told)["type"] == "error" and json.loads(told)["message"] == "too long"
    assert json.loads(told)["code"] == "400" and json.loads(told)["param"] == "x"


def test_an_error_without_a_layer_around_it():
    told, _ = events(error_event(Protocol.CHAT, 400, b'{"object":"error","message":"no","code":400}'))
    assert json.loads(told)["error"]["message"] == "no"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"no","took":NaN,"left":-Infinity,"far":1e999}}', "no"),
        (rb'{"error":{"message":"half \ud83d","code":500}}', "half ?"),
        (b'{"error":{"message":"cut \xf0\x9f"},"choices":[NaN]}', "cut \ufffd"),
        (b'\xef\xbb\xbf{"object":"error","message":"no"}', "no"),
        ('{"error":{"message":"no"}}'.encode("utf-16"), "no"),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_error_that_is_no_strict_json_keeps_its_message(protocol, body, message):
    told = json.loads(events(error_event(protocol, 502, body))[0].decode(), parse_constant=pytest.fail)
    assert told["error"]["message"] == message


DEEP = [b'{"error":{"message":"m","x":' + b"[" * n + b"]" * n + b"}}" for n in (900, 990, 100_000)]
BARE = [b'{"message":"m","x":' + b"[" * n + b"]" * n + b"}" for n in range(940, 1010)]


@pytest.mark.parametrize(
    "name", [b"Originator", b"thread-id", b"X-Codex-Turn-Metadata", b"User-Agent"], ids=bytes.decode
)
def test_codex_is_known_by_what_it_alone_sends(name):
    assert is_codex([(b"Accept", b"*/*"), (name, b"Codex_cli_rs/1")])
    assert not is_codex([(b"Session-Id", b"a"), (b"User-Agent", b"OpenAI/Python")])


def test_an_error_may_be_nested_however_deeply():
    for body, protocol in itertools.product(DEEP + BARE, PROTOCOLS):
        assert b"message" in error_event(protocol, 400, body)


@pytest.mark.parametrize("body", [b"", b"<html>\xff", b"[]", b'{"error":"x"}', b'{"error":{"message":1}}'])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_whatever_came_is_told(protocol, body):
    told = events(error_event(protocol, 502, body))[0]
    error = json.loads(told)["error"]
    assert isinstance(error["message"], str) and error["message"]


def test_a_refusal_keeps_its_shape():
    refusal = Refusal(reason=RefusalReason.QUEUE_TIMEOUT, message="busy", retry_after_s=3)
    body = error_body(Protocol.MESSAGES, refusal)
    (told,) = events(error_event(Protocol.MESSAGES, 503, body))
    assert json.loads(told) == json.loads(body)


def told(said: ResponseContent) -> list[tuple[Kind, str]]:
    return [(part.kind, part.text) for part in said.parts]


def test_what_is_unknown_makes_it_less_than_whole_and_the_rest_is_told():
    said = ResponseContent()
    said.add(1, Kind.TEXT, "before ")
    assert said.is_whole
    said.is_known = False
    said.add(1, Kind.TEXT, "after")
    assert told(said) == [(Kind.TEXT, "before after")] and not said.is_whole
    said.begin()
    said.add(1, Kind.TEXT, "anew")
    assert told(said) == [(Kind.TEXT, "anew")] and said.is_whole


def test_too_much_is_cut_and_not_whole():
    said = ResponseContent(8)
    said.add(1, Kind.TEXT, "12345678")
    assert said.is_whole and not said.is_full
    said.add(1, Kind.TEXT, "9")
    said.add(2, Kind.CALL, "{}", id="c", name="n")
    assert told(said) == [(Kind.TEXT, "12345678")] and said.is_full and not said.is_whole
    said.begin()
    assert said.max_bytes == 8 and not said.is_full


def test_parts_without_end_are_bounded():
    said = ResponseContent()
    for place in range(5000):
        said.add(place, Kind.CALL, id="c", name="n")
    assert len(said.parts) <= 1025 and not said.is_whole


@given(st.text(st.characters(), max_size=30), st.lists(st.integers(0, 30)), st.integers(1, 40))
def test_it_is_the_same_however_it_came(text, cuts, most):
    at_once, in_pieces = ResponseContent(most), ResponseContent(most)
    at_once.add(1, Kind.TEXT, text)
    places = [0, *sorted(cuts), len(text)]
    for start, end in pairwise(places):
        in_pieces.add(1, Kind.TEXT, text[start:end])
    assert told(at_once) == told(in_pieces)
    assert (at_once.is_full, at_once.is_whole) == (in_pieces.is_full, in_pieces.is_whole)
    whole = "".join(said for _, said in told(at_once))
    assert text.startswith(whole) and len(whole.encode(errors="surrogatepass")) <= most
    assert at_once.is_full or whole == text


CUSTOM = {"id": "c1", "type": "custom", "custom": {"name": "edit", "input": "free text"}}


@pytest.mark.parametrize(
    ("protocol", "answer", "expected", "is_whole"),
    [
        (
            Protocol.CHAT,
            {"choices": [{"index": 0, "message": {"content": "hi", "tool_calls": [CUSTOM]}}]},
            [(Kind.TEXT, "hi"), (Kind.CALL, "free text")],
            False,
        ),
        (Protocol.COMPLETIONS, {"choices": [{"index": 0, "text": " upon"}]}, [(Kind.TEXT, " upon")], True),
        (
            Protocol.RESPONSES,
            {
                "id": "r",
                "output": [
                    {"type": "web_search_call", "id": "ws_1"},
                    {"type": "custom_tool_call", "call_id": "c1", "name": "edit", "input": "free text"},
                ],
            },
            [(Kind.CALL, ""), (Kind.CALL, "free text")],
            True,
        ),
    ],
)
def test_answers_tell_all_that_they_say(protocol, answer, expected, is_whole):
    said = ResponseContent()
    observer = observe(protocol, Work.GENERATE, "application/json", None, content=said)
    observer.feed(json.dumps(answer).encode())
    observer.answer(200)
    assert told(said) == expected and said.is_whole is is_whole


def test_an_item_that_comes_twice_is_told_once():
    item = {"type": "message", "content": [{"type": "output_text", "text": "once"}]}
    whole = {"id": "r", "status": "completed", "output": [item]}
    events = [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    for some in (events, events[1:]):
        said = ResponseContent()
        observer = observe(Protocol.RESPONSES, Work.GENERATE, "text/event-stream", None, content=said)
        for event in some:
            observer.feed(b"data: %s\n\n" % json.dumps(event).encode())
        assert told(said) == [(Kind.TEXT, "once")]


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
    assert expected <= observer.answer(200).content_bytes <= 4 * expected


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
    assert texts * len(W) <= observer.answer(200).content_bytes <= 5 * texts * len(W)
