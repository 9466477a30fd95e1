"""What turns say, in the conventions' JSON: the right words, in their place, and never more than fits."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import Protocol
from gateway.responses.content import Kind, ResponseContent
from gateway.telemetry.otel.messages import describing
from gateway.wire.slices import finish

CHAT, RESPONSES, MESSAGES = Protocol.CHAT, Protocol.RESPONSES, Protocol.MESSAGES
ROOMY = 1 << 16
ARGUMENTS = {"city": "Paris", "days": 3}


def said(*parts: tuple[Any, ...]) -> list[Any]:
    heard = ResponseContent()
    for place, (kind, text, *named) in enumerate(parts):
        call_id, name = named or ("", "")
        heard.add(place, kind, text, id=call_id, name=name)
    return heard.parts


def described(
    protocol: Protocol, body: Any, *parts: tuple[Any, ...], reason: str = "stop", room: int = ROOMY
) -> tuple[dict[str, Any], int, bool]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    found, left_out, is_cut = finish(describing(protocol, raw, said(*parts), reason, max_bytes=room))
    assert sum(len(value) for _, value in found) <= room
    told = {name.removeprefix("gen_ai."): json.loads(value) for name, value in found}
    check(told)
    return told, left_out, is_cut


def check(told: dict[str, Any]) -> None:
    for message in (*told.get("input.messages", ()), *told.get("output.messages", ())):
        assert isinstance(message["role"], str)
        for part in message["parts"]:
            check_part(part)
    for message in told.get("output.messages", ()):
        assert isinstance(message["finish_reason"], str)
    for part in told.get("system_instructions", ()):
        check_part(part)
    for tool in told.get("tool.definitions", ()):
        assert isinstance(tool["type"], str) and isinstance(tool["name"], str)


NEEDED: dict[str, dict[str, type]] = {
    "text": {"content": str},
    "reasoning": {"content": str},
    "tool_call": {"name": str},
    "tool_call_response": {"response": object},
    "uri": {"modality": str, "uri": str},
    "file": {"modality": str, "file_id": str},
    "blob": {"modality": str, "content": str},
}


def check_part(part: dict[str, Any]) -> None:
    for name, kind in NEEDED.get(part["type"], {}).items():
        assert isinstance(part[name], kind)
    assert isinstance(part.get("id", ""), str)


def test_a_chat_completion_with_tools():
    call = {"id": "call_1", "type": "function"}
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Weather?"}]},
            {
                "role": "assistant",
                "reasoning_content": "hm",
                "content": None,
                "tool_calls": [{**call, "function": {"name": "look", "arguments": json.dumps(ARGUMENTS)}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "rainy"},
        ],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    }
    again = (Kind.CALL, '{"city":"Rome"}', "call_2", "look")
    told, left_out, is_cut = described(
        CHAT, body, (Kind.THOUGHT, "so"), (Kind.TEXT, "Rain."), again, reason="tool_calls"
    )
    assert told == {
        "input.messages": [
            {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
            {"role": "user", "parts": [{"type": "text", "content": "Weather?"}], "name": "ann"},
            {
                "role": "assistant",
                "parts": [
                    {"type": "reasoning", "content": "hm"},
                    {"type": "tool_call", "id": "call_1", "name": "look", "arguments": ARGUMENTS},
                ],
            },
            {
                "role": "tool",
                "parts": [{"type": "tool_call_response", "id": "call_1", "response": "rainy"}],
            },
        ],
        "output.messages": [
            {
                "role": "assistant",
                "parts": [
                    {"type": "reasoning", "content": "so"},
                    {"type": "text", "content": "Rain."},
                    {"type": "tool_call", "id": "call_2", "name": "look", "arguments": {"city": "Rome"}},
                ],
                "finish_reason": "tool_call",
            }
        ],
        "tool.definitions": [{"type": "function", "name": "look"}],
    }
    assert not left_out and not is_cut


def test_a_message():
    body = {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "xyz"},
                    {"type": "tool_use", "id": "tu_1", "name": "look", "input": ARGUMENTS},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "tu_1",
                        "content": [{"type": "text", "text": "wet"}],
                    }
                ],
            },
        ],
        "tools": [{"name": "look", "input_schema": {}}, {"type": "web_search_20250305", "name": "web"}],
    }
    told, *_ = described(MESSAGES, body, (Kind.TEXT, "Rain."), reason="end_turn")
    assert told["system_instructions"] == [{"type": "text", "content": "Be brief."}]
    assert [message["parts"] for message in told["input.messages"]] == [
        [{"type": "text", "content": "Weather?"}],
        [
            {"type": "reasoning", "content": "hm"},
            {"type": "tool_call", "id": "tu_1", "name": "look", "arguments": ARGUMENTS},
        ],
        [{"type": "tool_call_response", "id": "tu_1", "response": "wet"}],
    ]
    assert told["tool.definitions"] == [
        {"type": "function", "name": "look"},
        {"type": "web_search_20250305", "name": "web"},
    ]
    assert told["output.messages"][0]["finish_reason"] == "stop"


def test_a_response():
    body = {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": "hm"}],
                "encrypted_content": "x",
            },
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": json.dumps(ARGUMENTS)},
            {"type": "function_call_output", "call_id": "c1", "output": "rainy"},
            {"type": "item_reference", "id": "i1"},
        ],
    }
    told, *_ = described(RESPONSES, body, (Kind.TEXT, "Rain."), reason="max_output_tokens")
    assert told["system_instructions"] == [{"type": "text", "content": "Be brief."}]
    assert [(message["role"], message["parts"]) for message in told["input.messages"]] == [
        ("user", [{"type": "text", "content": "Weather?"}]),
        ("assistant", [{"type": "reasoning", "content": "hm"}]),
        ("assistant", [{"type": "tool_call", "id": "c1", "name": "look", "arguments": ARGUMENTS}]),
        ("tool", [{"type": "tool_call_response", "id": "c1", "response": "rainy"}]),
        ("user", [{"type": "item_reference"}]),
    ]
    assert told["output.messages"][0]["finish_reason"] == "length"
    told, *_ = described(RESPONSES, {"input": "Hi"})
    assert told == {"input.messages": [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]}


@pytest.mark.parametrize("prompt", ["Once", ["Once"]])
def test_a_text_completion(prompt):
    told, *_ = described(Protocol.COMPLETIONS, {"prompt": prompt}, (Kind.TEXT, " upon"))
    assert told["input.messages"] == [{"role": "user", "parts": [{"type": "text", "content": "Once"}]}]
    assert "input.messages" not in described(Protocol.COMPLETIONS, {"prompt": [[1, 2], [3]]})[0]


@pytest.mark.parametrize(
    ("part", "told_as"),
    [
        (
            {"type": "image_url", "image_url": {"url": "https://x/a.png"}},
            {"type": "uri", "modality": "image", "uri": "https://x/a.png"},
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,SECRETS"}},
            {"type": "blob", "modality": "image", "content": ""},
        ),
        (
            {"type": "image", "source": {"type": "base64", "data": "SECRETS"}},
            {"type": "blob", "modality": "image", "content": ""},
        ),
        (
            {"type": "input_image", "file_id": "file-1"},
            {"type": "file", "modality": "image", "file_id": "file-1"},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "SECRETS"}},
            {"type": "blob", "modality": "audio", "content": ""},
        ),
        ({"type": "new_kind", "new_kind": {"data": "SECRETS"}}, {"type": "new_kind"}),
        (7, {"type": "unknown"}),
        ({"type": "text"}, {"type": "unknown"}),
        ({"type": "file", "file": {"file_data": "SECRETS"}}, {"type": "unknown"}),
    ],
)
def test_media_are_named_and_left_out(part, told_as):
    told, _, is_cut = described(CHAT, {"messages": [{"role": "user", "content": [part]}]})
    assert told["input.messages"][0]["parts"] == [told_as]
    assert is_cut is (told_as["type"] == "blob")


@pytest.mark.parametrize("arguments", ["not JSON", '{"cut":', "{'a': 1}", '{"a":1} x', '"\\ud800"'])
def test_arguments_that_are_no_json_are_a_text(arguments):
    told, *_ = described(CHAT, {"messages": []}, (Kind.CALL, arguments, "c", "look"))
    [call] = told["output.messages"][0]["parts"]
    assert call["arguments"] == arguments or arguments.startswith('"')


def test_the_newest_messages_are_told_and_the_rest_is_counted():
    messages = [{"role": "user", "content": f"{number} " + "x" * 200} for number in range(100)]
    told, left_out, is_cut = described(CHAT, {"messages": messages}, (Kind.TEXT, "y"), room=4096)
    numbers = [int(each["parts"][0]["content"].split()[0]) for each in told["input.messages"]]
    assert numbers == list(range(left_out, 100)) and 80 < left_out < 95 and is_cut


def test_a_long_text_hides_no_others():
    long = {"role": "tool", "tool_call_id": "c", "content": "z" * 1_000_000}
    messages = [{"role": "user", "content": "the task"}, long, {"role": "user", "content": "go on"}]
    told, left_out, is_cut = described(CHAT, {"messages": messages}, (Kind.TEXT, "w" * 1_000_000), room=8192)
    task, result, last = told["input.messages"]
    assert task["parts"][0]["content"] == "the task" and last["parts"][0]["content"] == "go on"
    assert 1000 < len(result["parts"][0]["response"]) < 4096 and result["parts"][0]["response"].endswith("z…")
    assert 1500 < len(told["output.messages"][0]["parts"][0]["content"]) < 4096
    assert not left_out and is_cut


def test_half_a_pair_and_control_characters_are_valid_json_in_the_end():
    body = b'{"messages":[{"role":"user","content":"a\\u0000\\u001b"}]}'
    told, *_ = described(CHAT, body, (Kind.TEXT, "\ud800 x"))
    assert told["input.messages"][0]["parts"][0]["content"] == "a\0\x1b"
    assert told["output.messages"][0]["parts"][0]["content"] == "? x"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"messages":"x"}', b'{"messages":[1,[],"x"]}'])
def test_what_cannot_be_read_is_not_told_and_said(body):
    told, _, is_cut = described(CHAT, body, (Kind.TEXT, "answer"))
    assert told["output.messages"][0]["parts"] == [{"type": "text", "content": "answer"}] and is_cut


def test_a_conversation_of_many_items_is_not_read_to_its_end():
    body = {"messages": [{"role": "user", "content": "x"}] * 8000}
    steps = describing(CHAT, json.dumps(body).encode(), [], "stop", max_bytes=1024)
    assert sum(1 for _ in steps) < 40


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(
    ("text", "image_url", "tool_use", "tool_result", "thinking", "reasoning", "function_call", "x_output", "")
)
FIELDS = """\
role name text content thinking refusal tool_calls function arguments input id call_id tool_call_id
tool_use_id image_url source url output summary
""".split()
PARTS = st.fixed_dictionaries({}, optional={"type": KINDS | JSON, **dict.fromkeys(FIELDS, JSON)})
ROLES = st.sampled_from(("user", "assistant", "tool", "system"))
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(FIELDS, JSON),
        "role": ROLES | JSON,
        "type": KINDS | JSON,
        "content": st.text(max_size=3000) | st.lists(PARTS, max_size=4) | JSON,
        "tool_calls": st.lists(PARTS, max_size=3) | JSON,
    },
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(ITEMS, max_size=6),
        "input": st.lists(ITEMS, max_size=6) | st.text(),
        "prompt": JSON,
        "system": JSON | st.lists(PARTS, max_size=3),
        "instructions": JSON,
        "tools": st.lists(PARTS | JSON, max_size=6),
    },
)
SAID = st.lists(
    st.tuples(
        st.sampled_from(Kind),
        st.text(st.characters(), max_size=2000),
        st.text(max_size=9),
        st.text(max_size=9),
    ),
    max_size=5,
)


@given(
    st.sampled_from((CHAT, RESPONSES, MESSAGES, Protocol.COMPLETIONS)), BODIES, SAID, st.integers(1024, 9000)
)
def test_whatever_comes_it_is_valid_and_fits(protocol, body, parts, room):
    told, left_out, is_cut = described(protocol, body, *parts, room=room)
    assert left_out >= 0 and (is_cut or not left_out)
    assert "SECRET" not in json.dumps(told)
