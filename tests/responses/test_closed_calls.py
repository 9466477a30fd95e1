"""When the arguments of a call are complete, in each protocol: at the piece that ends them, not sooner."""

from typing import Any

import pytest

from gateway.domain.request import Protocol, Work
from gateway.responses import observed as module
from gateway.responses.observer import observe
from tests.wire.shapes import encode, sse

STREAM, JSON = "text/event-stream", "application/json"


def closed(protocol: Protocol, *events: dict[str, Any]) -> list[tuple[int, str, bytes | None]]:
    """Each call: the number of the event that closed it, its id, its arguments."""
    observer = observe(protocol, Work.GENERATE, STREAM, None)
    found: list[tuple[int, str, bytes | None]] = []
    for number, event in enumerate(events):
        observer.feed(sse([event], named=protocol is not Protocol.CHAT))
        while len(found) < len(observer.seen.closed_calls):
            at = len(found)
            found.append((number, observer.seen.closed_calls[at].id, observer.seen.arguments_of(at)))
    return found


def whole(protocol: Protocol, body: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    observer = observe(protocol, Work.GENERATE, JSON, None)
    observer.feed(encode(body))
    return [(call.id, observer.seen.arguments_of(at)) for at, call in enumerate(observer.seen.closed_calls)]


# --- chat completions --------------------------------------------------------------------------------


def chat(*calls: dict[str, Any], finish: str | None = None, choice: int = 0) -> dict[str, Any]:
    delta = {"tool_calls": list(calls)} if calls else {}
    return {"choices": [{"index": choice, "delta": delta, "finish_reason": finish}]}


def piece(arguments: str, index: int | None = 0, **first: Any) -> dict[str, Any]:
    name = {"name": first.pop("name")} if "name" in first else {}
    place = {} if index is None else {"index": index}
    return {**place, **first, "function": {**name, "arguments": arguments}}


def first(call_id: str, index: int | None = 0, arguments: str = "") -> dict[str, Any]:
    return piece(arguments, index, id=call_id, name="f")


def test_chat_calls_close_one_by_one():
    events = [
        chat(first("a")),
        chat(piece('{"x": "}')),
        chat(piece('\\"}"')),
        chat(piece("} ")),
        chat(first("b", 1, '{"y":')),
        chat(piece("{}}", 1)),
        chat(finish="tool_calls"),
    ]
    assert closed(Protocol.CHAT, *events) == [(3, "a", b'{"x": "}\\"}"} '), (5, "b", b'{"y":{}}')]


def test_chat_calls_may_come_without_an_index_or_under_one():
    events = [chat(first("a", None, "{}")), chat(first("b", None, '{"x')), chat(piece('":1}', None))]
    assert closed(Protocol.CHAT, *events) == [(0, "a", b"{}"), (2, "b", b'{"x":1}')]
    interleaved = [chat(first("a"), first("b", 1)), chat(piece("{", 0), piece("{", 1)), chat(piece("}", 0))]
    assert closed(Protocol.CHAT, *interleaved) == [(2, "a", b"{}")]


def test_a_name_that_comes_late():
    events = [chat(piece('{"x":', id="a")), chat(piece("", name="f")), chat(piece("1}"))]
    assert closed(Protocol.CHAT, *events) == [(2, "a", b'{"x":1}')]
    events = [chat(piece('{"x":1}', id="a")), chat(piece("", name="f"))]
    assert closed(Protocol.CHAT, *events) == [(1, "a", b'{"x":1}')]


@pytest.mark.parametrize(("finish", "closes"), [("tool_calls", True), ("stop", True), ("length", False)])
def test_a_call_without_arguments_closes_with_its_answer(finish, closes):
    events = [chat(first("a")), chat(first("b"), choice=1), chat(finish=finish)]
    assert closed(Protocol.CHAT, *events) == ([(2, "a", b"")] if closes else [])


def test_free_text_closes_with_its_answer():
    custom = {"index": 0, "id": "a", "custom": {"name": "f", "input": "{}"}}
    events = [chat(custom), chat({"index": 0, "custom": {"input": " more {"}}), chat(finish="tool_calls")]
    assert closed(Protocol.CHAT, *events) == [(2, "a", b"{} more {")]


@pytest.mark.parametrize("finish", ["tool_calls", "length"])
def test_arguments_that_never_end_close_nothing(finish):
    assert not closed(Protocol.CHAT, chat(first("a", arguments='{"x": "')), chat(finish=finish))
    message = {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"x": "'}}]}
    assert not whole(Protocol.CHAT, {"choices": [{"message": message, "finish_reason": finish}]})


def test_whole_chat_answers():
    calls = [
        {"id": "a", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "custom": {"name": "g", "input": "{ text"}},
    ]
    body = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    assert whole(Protocol.CHAT, body) == [("a", b"{}"), ("b", b"{ text")]


# --- responses ---------------------------------------------------------------------------------------


def item(arguments: str, call_id: str = "a", **more: Any) -> dict[str, Any]:
    given = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": "f"}
    return {**given, "arguments": arguments, **more}


def added(place: int, call: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": place, "item": call}


def done(place: int, call: dict[str, Any]) -> dict[str, Any]:
    return {**added(place, call), "type": "response.output_item.done"}


def delta(place: int, text: str) -> dict[str, Any]:
    return {"type": "response.function_call_arguments.delta", "output_index": place, "delta": text}


def test_responses_calls_close_with_their_arguments():
    events = [added(0, item("")), delta(0, '{"x":'), added(1, item("", "b")), delta(0, "1}"), delta(1, "{")]
    events += [done(0, item('{"x":1}')), done(1, item("{}", "b"))]
    assert closed(Protocol.RESPONSES, *events) == [(3, "a", b'{"x":1}'), (6, "b", b"{}")]


def test_responses_calls_without_pieces_close_when_they_are_done():
    assert closed(Protocol.RESPONSES, added(0, item("")), done(0, item("{}"))) == [(1, "a", b"{}")]
    assert closed(Protocol.RESPONSES, done(0, item(""))) == [(0, "a", b"")]
    custom = {"type": "custom_tool_call", "call_id": "a", "name": "f", "input": "{ text"}
    assert closed(Protocol.RESPONSES, done(0, custom)) == [(0, "a", b"{ text")]
    assert not closed(Protocol.RESPONSES, added(0, item("")), delta(0, "{"), done(0, item('{"x')))


def test_whole_responses():
    ended = {"id": "r", "status": "completed", "output": [item("{}"), item('{"x', "b")]}
    assert whole(Protocol.RESPONSES, ended) == [("a", b"{}")]
    completed = {"type": "response.completed", "response": ended}
    assert closed(Protocol.RESPONSES, completed) == [(0, "a", b"{}")]
    said = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    events = [added(0, item("")), delta(0, "{}"), {**completed, "response": {**ended, "output": [said]}}]
    observer = observe(Protocol.RESPONSES, Work.GENERATE, STREAM, None)
    observer.feed(sse(events, named=True))
    assert observer.answer(200).utterance.text, "pieces of a call are no reason not to read the rest"


# --- messages ----------------------------------------------------------------------------------------


def start(place: int, call_id: str, kind: str = "tool_use", **given: Any) -> dict[str, Any]:
    block = {"type": kind, "id": call_id, "name": "f", "input": given}
    return {"type": "content_block_start", "index": place, "content_block": block}


def part(place: int, text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": place, "delta": {"partial_json": text}}


def stop(place: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": place}


def test_messages_calls_close_with_their_arguments_or_their_block():
    events = [start(1, "a"), part(1, ""), part(1, '{"x":'), part(1, "1}"), stop(1), start(2, "b"), stop(2)]
    events += [start(3, "c", x=1), stop(3), start(4, "d"), part(4, "{"), stop(4)]
    assert closed(Protocol.MESSAGES, *events) == [
        (3, "a", b'{"x":1}'),
        (6, "b", b""),
        (7, "c", b'{"x":1}'),
    ]


def test_a_tool_of_the_engines_closes_nothing():
    assert not closed(Protocol.MESSAGES, start(0, "a", "server_tool_use"), part(0, "{}"), stop(0))


def test_whole_messages():
    blocks = [{"type": "tool_use", "id": each, "name": "f", "input": {"x": 1}} for each in "ab"]
    assert whole(Protocol.MESSAGES, {"content": blocks}) == [("a", b'{"x":1}'), ("b", b'{"x":1}')]
    assert whole(Protocol.MESSAGES, {"content": [{**blocks[0], "input": {}}]}) == [("a", b"")]


# --- limits ------------------------------------------------------------------------------------------


def test_of_an_answer_that_says_too_much_no_call_is_told(monkeypatch):
    monkeypatch.setattr(module, "MAX_OUTPUT_BYTES", 8)
    assert closed(Protocol.CHAT, chat(first("a", arguments="{}"))) == [(0, "a", b"{}")]
    assert not closed(Protocol.CHAT, chat(first("a", arguments='{"x": "yz"}')), chat(finish="tool_calls"))
    observer = observe(Protocol.CHAT, Work.GENERATE, STREAM, None)
    for event in (chat(first("a", arguments="{}")), chat(first("b", 1, '{"x": "yz"}')), chat(first("c", 2))):
        observer.feed(sse([event], named=False))
    observer.feed(sse([chat(finish="tool_calls")], named=False))
    assert [call.id for call in observer.seen.closed_calls] == ["a"] and observer.seen.arguments_of(0) is None
