"""What an answer says, piece by piece: bounded, the same however it was cut, and known to be whole or not."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import Protocol, Work
from gateway.wire.observer import observe
from gateway.wire.said import Kind, Said


def told(said: Said) -> list[tuple[Kind, str]]:
    return [(part.kind, part.text) for part in said.parts]


def test_what_is_unknown_makes_it_less_than_whole_and_the_rest_is_told():
    said = Said()
    said.add(1, Kind.TEXT, "before ")
    assert said.is_whole
    said.give_up()
    said.add(1, Kind.TEXT, "after")
    assert told(said) == [(Kind.TEXT, "before after")] and not said.is_whole
    said.begin()
    said.add(1, Kind.TEXT, "anew")
    assert told(said) == [(Kind.TEXT, "anew")] and said.is_whole


def test_too_much_is_cut_and_not_whole():
    said = Said(8)
    said.add(1, Kind.TEXT, "12345678")
    assert said.is_whole and not said.is_full
    said.add(1, Kind.TEXT, "9")
    said.add(2, Kind.CALL, "{}", id="c", name="n")
    assert told(said) == [(Kind.TEXT, "12345678")] and said.is_full and not said.is_whole
    said.begin()
    assert said.max_bytes == 8 and not said.is_full


def test_parts_without_end_are_bounded():
    said = Said()
    for place in range(5000):
        said.add(place, Kind.CALL, id="c", name="n")
    assert len(said.parts) <= 1025 and not said.is_whole


@given(st.text(st.characters(), max_size=30), st.lists(st.integers(0, 30)), st.integers(1, 40))
def test_it_is_the_same_however_it_came(text, cuts, most):
    at_once, in_pieces = Said(most), Said(most)
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
    said = Said()
    observer = observe(protocol, Work.GENERATE, "application/json", None, said=said)
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
        said = Said()
        observer = observe(Protocol.RESPONSES, Work.GENERATE, "text/event-stream", None, said=said)
        for event in some:
            observer.feed(b"data: %s\n\n" % json.dumps(event).encode())
        assert told(said) == [(Kind.TEXT, "once")]
