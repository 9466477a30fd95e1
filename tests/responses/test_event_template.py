"""Texts found by what stands around them, and what answers took that nobody reads."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.request import Protocol, Usage, Work
from gateway.responses.content import ResponseContent
from gateway.responses.observed import ObservedResponse
from gateway.responses.observer import _SHORT, StreamObserver, observe
from gateway.wire.inflate import zstd
from tests.examples import examples
from tests.wire.shapes import encode


def _chat(delta: dict[str, Any], index: int = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": None}], **more}


def _block(index: int, kind: str, field: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", field: "?"}}


def _calls(*numbers: int) -> list[dict[str, Any]]:
    return [{"index": at, "id": f"call_{at}", "function": {"name": "f", "arguments": ""}} for at in numbers]


_NUMBER = 777
_PLACES = {
    Protocol.CHAT: [
        _chat({"content": "?"}),
        _chat({"reasoning": "?"}),
        _chat({"tool_calls": [{"index": 0, "function": {"arguments": "?"}}]}),
        _chat({"tool_calls": [{"index": 1, "function": {"arguments": "?"}}]}),
        _chat({"content": "?"}, 1),
        _chat({"content": "?"}, usage={"completion_tokens": 3}),
    ],
    Protocol.MESSAGES: [
        _block(0, "text", "text"),
        _block(1, "thinking", "thinking"),
        _block(2, "input_json", "partial_json"),
        _block(3, "input_json", "partial_json"),
    ],
    Protocol.RESPONSES: [
        {"content_index": 0, "delta": "?", "sequence_number": _NUMBER, "type": "response.output_text.delta"},
        {
            "delta": "?",
            "item_id": "fc_1",
            "output_index": 1,
            "sequence_number": _NUMBER,
            "type": "response.function_call_arguments.delta",
        },
        {"output_index": 1, "delta": "?", "type": "response.function_call_arguments.delta"},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "?"},
        {"type": "response.custom_tool_call_input.delta", "output_index": 3, "delta": "?"},
    ],
}
"""Events of an answer that differ in a text."""
_OF_CALLS = {protocol: places[at] for (protocol, places), at in zip(_PLACES.items(), (2, 2, 1), strict=True)}
_OPENINGS = {
    Protocol.CHAT: [_chat({"tool_calls": _calls(0)}), _chat({"tool_calls": _calls(1)})],
    Protocol.MESSAGES: [
        {
            "type": "content_block_start",
            "index": at,
            "content_block": {"type": "tool_use", "id": f"toolu_{at}", "name": "f", "input": {}},
        }
        for at in (2, 3)
    ],
    Protocol.RESPONSES: [
        {
            "type": "response.output_item.added",
            "output_index": at,
            "item": {"type": "function_call", "call_id": f"call_{at}", "name": "f"},
        }
        for at in (1, 2)
    ],
}
_TEXTS = st.sampled_from(
    ["", "a", " the", "{", "}", '"', "\\", "\n\n", "é", "😀", '{"x": 1}', "usage", "[DONE]"]
)


_ODD = st.sampled_from(
    [b"null", b"7", b'"a","?":"b"', b'"a\\"', b'"\xff"', b'"a\nb"', b'"a"}}]}\n\ndata: {"x":"b"', b'"a" ']
)
"""What may stand in the place of a text."""


@given(
    st.sampled_from(list(_PLACES)),
    st.lists(st.tuples(st.integers(0, 5), _TEXTS | _ODD), max_size=40),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(300))
def test_what_an_answer_says_does_not_depend_on_how_it_is_read(protocol, said, end, is_spaced, keeps):
    """Event by event and many at once, which lets events be known again, and in pieces of bytes, which does
    not."""
    separators = (", ", ": ") if is_spaced else (",", ":")
    events = [json.dumps(each, separators=separators).encode() for each in _OPENINGS[protocol]]
    for number, (place, text) in enumerate(said):
        places = _PLACES[protocol]
        event = json.dumps(places[place % len(places)], separators=separators)
        event = event.replace(str(_NUMBER), str(number))
        is_text = isinstance(text, str)
        written = json.dumps(text, ensure_ascii=len(text) % 2 == 0).encode() if is_text else text
        events.append(event.encode().replace(b'"?"', written))
    blocks = [b"data: %s%s%s" % (each, end, end) for each in events]

    def seen(chunks: list[bytes]) -> tuple[Any, ...]:
        kept = ResponseContent() if keeps else None
        observer = observe(protocol, Work.GENERATE, "text/event-stream", None, said=kept)
        for each in chunks:
            observer.feed(each)
        answer = observer.answer(200)
        parts = [(part.kind, part.data, part.id) for part in kept.parts] if kept is not None else []
        arguments = [observer.seen.arguments_of(at) for at in range(len(observer.seen.closed_calls))]
        is_broken = any(text == b'"a\nb"' for _, text in said)  # no JSON, and no event
        content_bytes = 0 if is_broken else answer.content_bytes
        return answer.utterance.text, content_bytes, observer.seen.closed_calls, arguments, parts

    stream = b"".join(blocks)
    in_pieces = seen([stream[at : at + 7] for at in range(0, len(stream), 7)])
    assert seen(blocks) == seen([stream]) == seen([stream[:99], stream[99:]]) == in_pieces


def test_an_event_that_is_known_tells_whether_a_call_is_complete():
    observer = observe(Protocol.CHAT, Work.GENERATE, "text/event-stream", None)
    opening, place = _OPENINGS[Protocol.CHAT][0], _PLACES[Protocol.CHAT][2]
    observer.feed(b"data: %s\n\n" % encode(opening))
    pieces = ('{"x": ', '"a', "b", '"', "}", " ")
    news = [observer.feed(b"data: %s\n\n" % encode(place).replace(b'"?"', encode(each))) for each in pieces]
    assert news[2:] == [False, False, True, False]
    assert observer.seen.arguments_of(0) == b'{"x": "ab"} '


@pytest.mark.parametrize("protocol", list(_PLACES))
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("at_once", [1, 6])
def test_of_what_vllm_streams_hardly_any_token_is_decoded(protocol, end, at_once, monkeypatch):
    observer = observe(protocol, Work.GENERATE, "text/event-stream", None)
    assert isinstance(observer, StreamObserver)
    decoded: list[bytes] = []
    reader = type(observer._reader)
    read = reader.read_event

    def counted(self: Any, data: bytes, sighting: ObservedResponse) -> None:
        decoded.append(data)
        read(self, data, sighting)

    monkeypatch.setattr(reader, "read_event", counted)
    for opening in _OPENINGS[protocol][:1]:
        observer.feed(b"data: %s\n\n" % encode(opening))
    tokens = [f" token{number}" for number in range(14)] + [" naïve", " 😀", "\n", ' "quoted"']
    for place in (_PLACES[protocol][0], _OF_CALLS[protocol]):
        events = []
        for number, token in enumerate(tokens):
            event = json.dumps(place, separators=(",", ":")).replace(str(_NUMBER), str(7 + number))
            event = event.replace('"?"', json.dumps(token, ensure_ascii=False))
            events.append(f"event: x\ndata: {event}\n\n".encode().replace(b"\n", end))
        for at in range(0, len(events), at_once):
            observer.feed(b"".join(events[at : at + at_once]))
    few = _SHORT if at_once == 1 else 0  # of a short answer all are read
    assert len(decoded) <= 1 + few + 2  # what opens the call, and one of each kind to know the others by


NUMBERS = [{"index": 0, "embedding": [0.015625] * 300_000}]
DETAILS: dict[str, Any] = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens": 0}
FORGED = [{"document": {"text": '"usage": {"prompt_tokens": 1}, \\" "usage":{"prompt_tokens":2}'}}] * 200
ECHOED: Any = [{"index": 0, "document": {"usage": {"prompt_tokens": 1}, "text": "}}}"}}] * 200
ANSWERS: list[Any] = [
    ({"data": NUMBERS, "usage": {"prompt_tokens": 9, "total_tokens": 9} | DETAILS}, 9, 4, 0),
    ({"id": "r", "usage": {"prompt_tokens": 7, "total_tokens": 7}, "results": FORGED}, 7, None, 0),
    ({"results": FORGED, "usage": {"prompt_tokens": 6}}, 6, None, 0),
    ({"embeddings": {}, "meta": {"billed_units": {"input_tokens": 5}}}, 5, None, 0),
    ({"usage": {"input_tokens": 3, "output_tokens": 2}, "answers": []}, 3, None, 2),
    ({"usage": {"total_tokens": 8}, "results": FORGED}, 8, None, 0),
    ({"usage": {"total_tokens": 8}, "results": ECHOED}, 8, None, 0),
    ({"results": ECHOED, "usage": {"total_tokens": 8}}, 8, None, 0),
    ({"results": ECHOED}, None, None, None),
    ({"usage": {"prompt_tokens": "many"}}, None, None, None),
    ({"data": NUMBERS, "usage": None}, None, None, None),
    ({"usage": {"prompt_tokens": -5}}, None, None, None),
]


def usage_of(body: bytes, size: int, coding: str | None = None, status: int = 200) -> Usage:
    observer = observe(Protocol.OTHER, Work.POOL, "application/json", coding)
    for at in range(0, len(body), size):
        observer.feed(body[at : at + size])
    while observer.has_backlog:
        observer.feed(b"")
    return observer.answer(status, is_over=True).usage


@pytest.mark.parametrize(("answer", "prompt", "cached", "output"), ANSWERS)
@pytest.mark.parametrize(
    ("coding", "pack"), [(None, bytes), ("gzip", gzip.compress), ("zstd", zstd.compress)]
)
def test_it_is_found(answer, prompt, cached, output, coding, pack):
    expected = Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)
    for indent in (None, 1):
        body = pack(json.dumps(answer, indent=indent).encode())
        assert usage_of(body, 65_536, coding) == usage_of(body, 1 << 24, coding) == expected
        assert usage_of(body, 65_536, coding, status=400) == Usage()


def test_of_an_answer_that_is_too_much_to_be_read_usage_is_found_in_its_middle():
    dense = {"choices": [{"index": 0, "message": {"content": "word " * 2_000}}], "usage": COUNTED["usage"]}
    body = json.dumps(dense | {"prompt_logprobs": [{"1": {"rank": 1}}] * 100_000}).encode()
    observer = observe(Protocol.CHAT, Work.GENERATE, "application/json", None)
    observer.feed(body)
    answer = observer.answer(200, is_over=True)
    assert answer.usage == Usage(prompt_tokens=9, output_tokens=8)
    assert not answer.content_bytes, "bytes count where nothing else does"


def test_a_usage_that_cannot_be_is_none():
    for count in (-350, 2**70):
        observer = observe(Protocol.CHAT, Work.GENERATE, "application/json", None)
        observer.feed(json.dumps({"choices": [], "usage": {"prompt_tokens": count}}).encode())
        assert observer.answer(200, is_over=True).usage == Usage()


COHERE: Any = {"message": {"content": [{"type": "text", "text": "word " * 9_000}]}}
TAKEN: Any = {
    "usage": {"billed_units": {"input_tokens": 1}, "tokens": {"input_tokens": 9, "output_tokens": 8}}
}
LONG: Any = {"choices": [{"message": {"content": "a", "x": [0] * 300_000}}]}
COUNTED: Any = {"usage": {"prompt_tokens": 9, "completion_tokens": 8}}
JSON, STREAM = "application/json", "text/event-stream"


@pytest.mark.parametrize(
    ("protocol", "content_type", "parts", "is_counted"),
    [
        (Protocol.OTHER, JSON, [json.dumps(COHERE | TAKEN)], True),
        (Protocol.OTHER, JSON, [json.dumps(COHERE)], False),
        (Protocol.OTHER, STREAM, [f"data: {json.dumps(each)}\n\n" for each in (COHERE, TAKEN)], True),
        (Protocol.OTHER, STREAM, [f"data: {json.dumps(COHERE)}\n\n"] * 9, False),
        (Protocol.OTHER, "application/cbor", ["word " * 9_000], False),
        (Protocol.CHAT, JSON, [json.dumps(LONG | COUNTED)], True),  # too many values to be read
        (Protocol.CHAT, JSON, [json.dumps(LONG)], False),
        (Protocol.CHAT, JSON, [json.dumps(COHERE)[:9_000]], False),  # its client left meanwhile
        (Protocol.CHAT, "application/cbor", ["word " * 9_000], False),
    ],
)
@pytest.mark.parametrize("coding", [None, "gzip"])
def test_what_a_model_wrote_counts_also_where_it_is_not_read(
    protocol, content_type, parts, is_counted, coding
):
    body = "".join(parts).encode()
    observer = observe(protocol, Work.GENERATE, content_type, coding)
    observer.feed(body if coding is None else gzip.compress(body))
    while observer.has_backlog:
        observer.feed(b"")
    answer = observer.answer(200)
    assert answer.usage == (Usage(prompt_tokens=9, output_tokens=8) if is_counted else Usage())
    assert is_counted or answer.content_bytes == len(body)


def test_vllm_says_beside_bytes_what_they_took():
    head = b'HTTP/1.1 200 OK\r\nMetadata: {"data": [], "usage": {"prompt_tokens": 7}}\r\nx: "usage": {}\r\n'
    observer = observe(Protocol.OTHER, Work.POOL, "application/octet-stream", None, head=head)
    observer.feed(bytes(9_000))
    assert observer.answer(200).usage == Usage(prompt_tokens=7, output_tokens=0)


@given(st.integers(1, 5000), st.sampled_from(ANSWERS[1:6]))
def test_wherever_it_is_cut(size, case):
    answer, prompt, *_ = case
    assert usage_of(json.dumps(answer).encode(), size).prompt_tokens == prompt


@given(st.binary(max_size=300), st.sampled_from((None, "gzip", "br")))
def test_what_is_no_answer_says_nothing_and_fails_nothing(body, coding):
    assert usage_of(body, 7, coding) == Usage()


def test_little_is_kept_and_time_is_linear_in_braces():
    body = b'"usage":{' * 500_000
    assert usage_of(body, 1000) == usage_of(b'{"usage":{"a":{' + b"{}" * 10**6, 65_536) == Usage()
