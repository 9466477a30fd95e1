"""However the JSON of arguments is cut into chunks: each call comes once, at the chunk that closes it."""

import ast
import asyncio
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import ready_calls as module
from examples.ready_calls import CallReader, ReadyCall, ready_calls, ready_calls_sync
from tests.wire.test_object_end import OBJECTS

Chunk = dict[str, Any]


class Shape:
    """How a protocol streams a call: its beginning, a piece of its arguments, its end; the answer's end."""

    def __init__(
        self,
        begin: Callable[[int, str], Chunk],
        piece: Callable[[int, str], Chunk],
        end: Callable[[int, str], Chunk | None],
        finish: Callable[[str], Chunk],
    ) -> None:
        self.begin, self.piece, self.end, self.finish = begin, piece, end, finish


def chat(delta: Chunk, finish: str | None = None) -> Chunk:
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def chat_call(index: int, **fields: Any) -> Chunk:
    return chat({"content": None, "tool_calls": [{"index": index, **fields}]})


def langchain(*pieces: Chunk, finish: str | None = None) -> Chunk:
    metadata = {"finish_reason": finish} if finish else {}
    return {"type": "AIMessageChunk", "tool_call_chunks": list(pieces), "response_metadata": metadata}


def function_call(at: int, arguments: str) -> Chunk:
    return {
        "type": "function_call",
        "id": f"fc{at}",
        "call_id": f"c{at}",
        "name": "f",
        "arguments": arguments,
    }


SHAPES = {
    "chat": Shape(
        lambda at, _: chat_call(at, id=f"c{at}", type="function", function={"name": "f", "arguments": ""}),
        lambda at, piece: chat_call(at, function={"arguments": piece}),
        lambda at, text: None,
        lambda reason: chat({}, {"whole": "tool_calls", "cut": "length"}[reason]),
    ),
    "langchain": Shape(
        lambda at, _: langchain({"name": "f", "args": "", "id": f"c{at}", "index": at}),
        lambda at, piece: langchain({"name": None, "args": piece, "id": None, "index": at}),
        lambda at, text: None,
        lambda reason: langchain(finish={"whole": "tool_calls", "cut": "length"}[reason]),
    ),
    "responses": Shape(
        lambda at, _: {
            "type": "response.output_item.added",
            "output_index": at,
            "item": function_call(at, ""),
        },
        lambda at, piece: {
            "type": "response.function_call_arguments.delta",
            "output_index": at,
            "item_id": f"fc{at}",
            "delta": piece,
        },
        lambda at, text: {
            "type": "response.output_item.done",
            "output_index": at,
            "item": function_call(at, text),
        },
        lambda reason: {"type": "response.completed", "response": {"output": []}},
    ),
    "messages": Shape(
        lambda at, _: {
            "type": "content_block_start",
            "index": at,
            "content_block": {"type": "tool_use", "id": f"c{at}", "name": "f", "input": {}},
        },
        lambda at, piece: {
            "type": "content_block_delta",
            "index": at,
            "delta": {"type": "input_json_delta", "partial_json": piece},
        },
        lambda at, text: {"type": "content_block_stop", "index": at},
        lambda reason: {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    ),
}


def as_object(value: Any) -> Any:
    """As SDKs give it: attributes instead of keys, but for what is a JSON value there as well."""
    if isinstance(value, list):
        return [as_object(each) for each in value]
    if not isinstance(value, dict):
        return value
    return SimpleNamespace(
        **{key: each if key == "input" else as_object(each) for key, each in value.items()}
    )


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    at = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    edges = [0, *at, len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


@every_shape
@given(st.lists(OBJECTS, min_size=1, max_size=3), st.booleans(), st.data())
def test_a_call_comes_once_with_the_chunk_that_closes_it(shape, values, are_objects, data):
    reader, chunks, expected = CallReader(), list[Chunk](), list[tuple[int, ReadyCall]]()
    for at, value in enumerate(values):
        text = json.dumps(value)
        chunks.append(shape.begin(at, text))
        left = len(text)
        for piece in data.draw(cut(text)):
            left -= len(piece)
            chunks.append(shape.piece(at, piece))
            if not left and piece:
                expected.append((len(chunks) - 1, ReadyCall(f"c{at}", "f", value, text)))
        if (end := shape.end(at, text)) is not None:
            chunks.append(end)
    chunks.append(shape.finish("whole"))
    found = []
    for number, chunk in enumerate(chunks):
        found += [(number, call) for call in reader.feed(as_object(chunk) if are_objects else chunk)]
    assert found == expected


@every_shape
@given(OBJECTS, st.sampled_from(["whole", "cut"]), st.data())
def test_what_is_not_closed_never_comes(shape, value, reason, data):
    text = json.dumps(value)
    text = text[: data.draw(st.integers(1, len(text) - 1))]
    chunks = [shape.begin(0, text), *(shape.piece(0, piece) for piece in data.draw(cut(text)))]
    end = shape.end(0, text)
    chunks += [chunk for chunk in (end, shape.finish(reason)) if chunk is not None]
    assert not list(ready_calls_sync(chunks))


@every_shape
def test_a_call_without_arguments_comes_with_its_end(shape):
    end = shape.end(0, "")
    whole = [shape.begin(0, ""), end or shape.finish("whole")]
    assert list(ready_calls_sync(whole)) == [ReadyCall("c0", "f", {}, "")]
    if end is None:
        assert not list(ready_calls_sync([shape.begin(0, ""), shape.finish("cut")]))


@every_shape
def test_what_is_no_json_is_left_to_the_answers_end(shape):
    chunks = [shape.begin(0, "{x}"), shape.piece(0, "{x}"), shape.end(0, "{x}"), shape.finish("whole")]
    assert not list(ready_calls_sync(chunk for chunk in chunks if chunk is not None))


def test_engines_that_know_no_index():
    def piece(arguments: str, **more: Any) -> Chunk:
        function = {"arguments": arguments, **({"name": "f"} if more else {})}
        return chat({"tool_calls": [{**more, "function": function}]})

    chunks = [piece("{", id="a"), piece("}"), piece("{}", id="b"), piece('{"x":', id="c"), piece("1}")]
    assert [(call.id, call.raw) for call in ready_calls_sync(chunks)] == [
        ("a", "{}"),
        ("b", "{}"),
        ("c", '{"x":1}'),
    ]


def test_a_name_that_comes_late():
    chunks = [
        chat_call(0, id="a", function={"arguments": "{}"}),
        chat_call(0, function={"name": "f", "arguments": None}),
    ]
    assert [call.name for call in ready_calls_sync(chunks)] == ["f"]


def test_tools_that_take_text():
    chunks = [
        chat_call(0, id="a", type="custom", custom={"name": "sh", "input": "{}"}),
        chat_call(0, custom={"input": "; ls"}),
        chat({}, "tool_calls"),
    ]
    assert list(ready_calls_sync(chunks)) == [ReadyCall("a", "sh", "{}; ls", "{}; ls")]
    item = {"type": "custom_tool_call", "call_id": "a", "name": "sh", "input": "{ ls"}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    assert list(ready_calls_sync([done])) == [ReadyCall("a", "sh", "{ ls", "{ ls")]


def test_a_response_that_came_in_no_pieces():
    items = [{"type": "message"}, function_call(1, "{}"), function_call(2, '{"x')]
    completed = {"type": "response.completed", "response": {"output": items}}
    assert [call.id for call in ready_calls_sync([completed, completed])] == ["c1"]
    added = {"type": "response.output_item.added", "output_index": 0, "item": function_call(0, "")}
    done = {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": "{}"}
    whole = {"type": "response.completed", "response": {"output": [function_call(0, "{}")]}}
    assert [call.id for call in ready_calls_sync([added, done, whole])] == ["c0"]


def test_a_block_that_is_whole_when_it_begins():
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    stop = {"type": "content_block_stop", "index": 0}
    assert [call.arguments for call in ready_calls_sync([start, stop])] == [{"x": 1}]


def test_what_is_no_chunk_is_passed_over_and_on():
    chunks: list[Any] = [
        None,
        7,
        "text",
        {},
        {"type": None},
        {"type": "ping"},
        {"type": "response.x"},
        {"choices": []},
    ]
    seen: list[Any] = []
    assert not list(ready_calls_sync(chunks, on_chunk=seen.append))
    assert seen == chunks


async def test_a_call_comes_before_the_next_chunk_is_asked_for():
    log: list[str] = []

    async def stream() -> Any:
        for at in range(2):
            await asyncio.sleep(0)
            log.append(f"chunk {at}")
            yield chat_call(at, id=f"c{at}", function={"name": "f", "arguments": "{}"})

    def pass_on(_: Any) -> None:
        log.append("passed on")

    calls = ready_calls(stream(), on_chunk=pass_on)
    while (call := await anext(calls, None)) is not None:
        log.append(call.id)
    assert log == ["chunk 0", "passed on", "c0", "chunk 1", "passed on", "c1"]


def imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def test_it_needs_the_standard_library_and_nothing_else():
    names = {name.partition(".")[0] for name in imports(Path(module.__file__).read_text())}
    assert names and names <= sys.stdlib_module_names
