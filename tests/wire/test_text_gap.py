"""Texts that are found by what stands around them are the texts that a parser would find."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.request import Protocol, Work
from gateway.wire.observer import StreamObserver, observe
from gateway.wire.said import Said
from gateway.wire.sighting import Sighting
from tests.examples import examples
from tests.wire.shapes import encode


def _chat(delta: dict[str, Any], index: int = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": None}], **more}


def _block(index: int, kind: str, field: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", field: "?"}}


def _calls(*numbers: int) -> list[dict[str, Any]]:
    return [{"index": at, "id": f"call_{at}", "function": {"name": "f", "arguments": ""}} for at in numbers]


_NUMBER = 777
"""Stands for the number of an event."""
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
    """Event by event, which lets events be known again, and in pieces of bytes, which does not."""
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
        kept = Said() if keeps else None
        observer = observe(protocol, Work.GENERATE, "text/event-stream", None, said=kept)
        for each in chunks:
            observer.feed(each)
        answer = observer.answer(200)
        parts = [(part.kind, part.data, part.id) for part in kept.parts] if kept is not None else []
        arguments = [observer.arguments_of(at) for at in range(len(observer.closed_calls))]
        is_broken = any(text == b'"a\nb"' for _, text in said)  # no JSON, and no event
        said_bytes = 0 if is_broken else answer.said_bytes
        return answer.utterance.text, said_bytes, observer.closed_calls, arguments, parts

    stream = b"".join(blocks)
    assert seen(blocks) == seen([stream[at : at + 7] for at in range(0, len(stream), 7)])


def test_an_event_that_is_known_tells_whether_a_call_is_complete():
    observer = observe(Protocol.CHAT, Work.GENERATE, "text/event-stream", None)
    opening, place = _OPENINGS[Protocol.CHAT][0], _PLACES[Protocol.CHAT][2]
    observer.feed(b"data: %s\n\n" % encode(opening))
    pieces = ('{"x": ', '"a', "b", '"', "}", " ")
    news = [observer.feed(b"data: %s\n\n" % encode(place).replace(b'"?"', encode(each))) for each in pieces]
    assert news[2:] == [False, False, True, False]
    assert observer.arguments_of(0) == b'{"x": "ab"} '


@pytest.mark.parametrize("protocol", list(_PLACES))
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_of_what_vllm_streams_hardly_any_token_is_decoded(protocol, end, monkeypatch):
    observer = observe(protocol, Work.GENERATE, "text/event-stream", None)
    assert isinstance(observer, StreamObserver)
    decoded: list[bytes] = []
    reader = type(observer._reader)
    read = reader.read_event

    def counted(self: Any, data: bytes, sighting: Sighting) -> None:
        decoded.append(data)
        read(self, data, sighting)

    monkeypatch.setattr(reader, "read_event", counted)
    for opening in _OPENINGS[protocol][:1]:
        observer.feed(b"data: %s\n\n" % encode(opening))
    tokens = [f" token{number}" for number in range(8)] + [" naïve", " 😀", "\n", ' "quoted"']
    for place in (_PLACES[protocol][0], _OF_CALLS[protocol]):
        for number, token in enumerate(tokens):
            event = json.dumps(place, separators=(",", ":")).replace(str(_NUMBER), str(7 + number))
            event = event.replace('"?"', json.dumps(token, ensure_ascii=False))
            observer.feed(f"event: x\ndata: {event}\n\n".encode().replace(b"\n", end))
    assert len(decoded) <= 1 + 2  # what opens the call, and one of each kind to know the others by
