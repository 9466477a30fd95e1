"""Texts that are found by what stands around them are the texts that a parser would find."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.request import Protocol, Work
from gateway.wire.hashing import text_hash
from gateway.wire.observer import StreamObserver, observe
from gateway.wire.said import Kind, Said
from gateway.wire.sighting import Sighting
from gateway.wire.text_gap import NumberedGap, Piece, Pieces, TextGap
from tests.examples import examples
from tests.wire.shapes import encode

BEFORE, AFTER = b'data: {"choices":[{"index":0,"delta":{"content":"', b'"},"finish_reason":null}]}\n\n'


def event(content: str, *, ascii_only: bool = False) -> bytes:
    text = json.dumps(content, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    return BEFORE + text[1:-1] + AFTER


GAP = TextGap(BEFORE, AFTER)


@pytest.mark.parametrize(
    "text", ["", "a", 'say "hi"', "back\\slash", "line\n\nend", "naïve → 😀", '"},"x":"']
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_text_is_found(text, ascii_only):
    assert GAP.text_of(event(text, ascii_only=ascii_only)) == text
    assert GAP.text_of(event(text, ascii_only=ascii_only) * 3) == text * 3


OTHERS = {
    "a word": b"a",
    "an empty event": b"\n\n",
    "too short": BEFORE[:-1] + AFTER,
    "a tool call": BEFORE.replace(b"content", b"tool_calls") + b"a" + AFTER,
    "an unescaped quote": BEFORE + b'a","tool_calls":"b' + AFTER,
    "an end": BEFORE + b"a" + AFTER.replace(b"null", b'"stop"'),
    "a raw line end": BEFORE + b"a\nb" + AFTER,
    "half an escape": BEFORE + b"a\\" + AFTER,
    "bad UTF-8": BEFORE + b"\xff" + AFTER,
    "the end mark": b"data: [DONE]\n\n",
    "a comment": b": ping\n\n",
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_event_is_not_taken_for_text(other):
    for events in (other, event("a") + other, other + event("a"), event("a") + other + event("b")):
        assert GAP.text_of(events) is None


NUMBERED = NumberedGap(b'data: {"delta":"', b'","sequence_number":', b',"type":"d"}\n\n')


def numbered(text: str, number: str = "12", end: str = ',"type":"d"}\n\n') -> bytes:
    return f'data: {{"delta":"{text}","sequence_number":{number}{end}'.encode()


@pytest.mark.parametrize("text", ["", "a", "naïve → 😀", r"a\"b", r"line\n", r"\",\"sequence_number\":7"])
@pytest.mark.parametrize("number", ["1", "12345"])
def test_the_text_of_a_numbered_event_is_found(text, number):
    assert NUMBERED.text_of(numbered(text, number)) == json.loads(f'"{text}"')


@pytest.mark.parametrize(
    "other",
    [
        numbered("a") * 2,
        numbered("a", ""),
        numbered("a", "01"),
        numbered("a", "-1"),
        numbered("a", "1.5"),
        numbered("a", "1", ""),
        numbered("a", '1,"x":2'),
        numbered("a", "1", ',"type":"e"}\n\n'),
        numbered('a","b":"c'),
        numbered("a\nb"),
        numbered("a\\"),
        numbered("a").replace(b"delta", b"Delta"),
        numbered("a").replace(b"sequence", b"consequence"),
        b"data: [DONE]\n\n",
    ],
)
def test_another_event_is_not_taken_for_a_numbered_one(other):
    assert NUMBERED.text_of(other) is None


def says(data: bytes) -> Piece | None:
    content = json.loads(data)["content"]
    return Piece(Kind.TEXT, None, content) if isinstance(content, str) else None


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("text", ["", "a", 'say "hi"', "naïve\n"])
@pytest.mark.parametrize("blank", [b"", b" "])
def test_a_gap_is_learned_from_an_event_of_one_piece(end, text, blank):
    pieces = Pieces(says)
    event = b'data: {"id":7,"content":%s%s}' % (blank, json.dumps(text).encode())
    pieces.learn(event + end)
    assert pieces.gap is not None
    assert pieces.gap.text_of(event + end) == text
    assert pieces.gap.text_of(event.replace(b"7", b"8") + end) is None


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"content":null}\n\n',
        b'data: {"content":"a"}',
        b'data: {"content":"a"\n\n',
        b'data: {"x":{"content":"a"},"content":"b"}\n\n',
        b'data: {"content":"a","content":"b"}\n\n',
        b"data: [DONE]\n\n",
    ],
)
def test_no_gap_is_learned_where_another_text_would_say_the_same(event):
    pieces = Pieces(says)
    pieces.learn(event)
    assert pieces.gap is None


def test_tries_are_bounded():
    seen = []

    def count(data: bytes) -> Piece | None:
        seen.append(data)
        return Piece(Kind.TEXT, None, "never the same")

    pieces = Pieces(count)
    for _ in range(1000):
        pieces.learn(b'data: {"content":"a"}\n\n')
    assert len(seen) < 100


_contents = st.lists(st.text(max_size=8), min_size=1, max_size=30)


@given(
    _contents, st.lists(st.integers(0, 30), max_size=6), st.booleans(), st.sampled_from(["content", "text"])
)
@settings(deadline=None)
def test_what_was_said_is_the_same_however_it_is_read(contents, cuts, ascii_only, field):
    """Also with events in between that tell something else in the same place."""
    events: list[dict[str, Any]] = []
    for number, content in enumerate(contents):
        said: dict[str, Any] = {"text": content} if field == "text" else {"delta": {"content": content}}
        events.append(said | {"index": 0, "finish_reason": None})
        if number in cuts:
            events.append({"index": 1, "delta": {"content": "another choice"}, "finish_reason": None})
            events.append({"index": 0, "delta": {"content": None, "reasoning": '"content":"x"'}})
    blocks = [
        b"data: %s\n\n"
        % json.dumps({"choices": [each]}, ensure_ascii=ascii_only, separators=(",", ":")).encode()
        for each in events
    ]
    first = [each for each in events if each["index"] == 0]
    said_text = "".join(each.get("text") or each.get("delta", {}).get("content") or "" for each in first)
    for size in (1, 3, len(blocks)):
        observer = observe(Protocol.CHAT, Work.GENERATE, "text/event-stream", None)
        for at in range(0, len(blocks), size):
            observer.feed(b"".join(blocks[at : at + size]))
        assert observer.answer(200).utterance.text == text_hash(said_text)


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


@given(
    st.sampled_from(list(_PLACES)),
    st.lists(st.tuples(st.integers(0, 5), _TEXTS), max_size=40),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(300))
def test_what_an_answer_says_does_not_depend_on_how_it_is_read(protocol, said, end, is_spaced, keeps):
    """Event by event, which lets events be known again, and in pieces of bytes, which does not."""
    separators = (", ", ": ") if is_spaced else (",", ":")
    events = [json.dumps(each, separators=separators) for each in _OPENINGS[protocol]]
    for number, (place, text) in enumerate(said):
        places = _PLACES[protocol]
        event = json.dumps(places[place % len(places)], separators=separators, ensure_ascii=False)
        event = event.replace(str(_NUMBER), str(number))
        events.append(event.replace('"?"', json.dumps(text, ensure_ascii=len(text) % 2 == 0)))
    blocks = [f"data: {each}{end}{end}".encode() for each in events]

    def seen(chunks: list[bytes]) -> tuple[Any, ...]:
        kept = Said() if keeps else None
        observer = observe(protocol, Work.GENERATE, "text/event-stream", None, said=kept)
        for each in chunks:
            observer.feed(each)
        answer = observer.answer(200)
        parts = [(part.kind, part.data, part.id) for part in kept.parts] if kept is not None else []
        arguments = [observer.arguments_of(at) for at in range(len(observer.closed_calls))]
        return answer.utterance.text, answer.said_bytes, observer.closed_calls, arguments, parts

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


def _vllm(protocol: Protocol, text: str, number: int, *, is_call: bool) -> bytes:
    """As vLLM 0.24 writes a token."""
    said: dict[str, Any]
    match protocol:
        case Protocol.CHAT:
            call = [{"index": 0, "function": {"arguments": text}}]
            choice: dict[str, Any] = {
                "index": 0,
                "delta": {"tool_calls": call} if is_call else {"content": text},
            }
            choice |= {"logprobs": None, "finish_reason": None, "token_ids": None}
            kind, said = "", {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}
        case Protocol.MESSAGES:
            of_call = {"type": "input_json_delta", "partial_json": text}
            delta = of_call if is_call else {"type": "text_delta", "text": text}
            kind = "content_block_delta"
            said = {"type": kind, "index": int(is_call), "delta": delta}
        case _:
            kind = f"response.{'function_call_arguments' if is_call else 'output_text'}.delta"
            said = {"delta": text, "item_id": "i_1", "output_index": int(is_call)}
            if not is_call:
                said = {
                    "content_index": 0,
                    "delta": text,
                    "item_id": "i_1",
                    "logprobs": [],
                    "output_index": 0,
                }
            said |= {"sequence_number": number, "type": kind}
    event = f"data: {json.dumps(said, separators=(',', ':'), ensure_ascii=False)}\n\n"
    return (f"event: {kind}\n{event}" if kind else event).encode()


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
    for is_call in (False, True):
        for number, token in enumerate(tokens):
            event = _vllm(protocol, token, 7 + number, is_call=is_call)
            observer.feed(event.replace(b"\n", end))
    assert len(decoded) <= 1 + 2  # what opens the call, and one of each kind to know the others by
