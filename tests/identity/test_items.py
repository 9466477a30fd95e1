import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.identity.items import (
    ASIDE,
    ASSISTANT,
    NOTHING,
    SYSTEM,
    TOOL,
    USER,
    Item,
    canonical_arguments,
    read_item,
    without_thought,
)
from gateway.wire.hashing import text_hash
from tests.wire.shapes import assistant, call, raws, result, user


def read(item: Any) -> Item:
    return read_item(raws([item])[0])


USE = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
FUNCTION = {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x": 1}'}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # parts and plain text, cache marks, names, nulls, white space
        (user("Hi  you"), {"role": "user", "content": [{"type": "text", "text": "Hi you\n"}]}),
        (user(), {**user(), "name": "me", "cache_control": {"type": "ephemeral"}}),
        (
            user("Hi"),
            {"role": "user", "content": [{"type": "input_text", "text": "Hi", "cache_control": {}}]},
        ),
        (assistant(), {**assistant(), "tool_calls": None, "refusal": None, "provider_specific_fields": {}}),
        # reasoning, as a field, a block, or a tag
        (assistant(text="Yes."), {**assistant(text="Yes."), "reasoning_content": "Hm.", "reasoning": "Hm."}),
        (assistant(text="Yes."), assistant(text="<think>Hm,\nwell</think>Yes.")),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, USE]},
            {"role": "assistant", "content": [{**USE, "cache_control": {"type": "ephemeral"}}]},
        ),
        # arguments serialised anew, indexes
        (
            assistant("a"),
            {
                **assistant(),
                "tool_calls": [
                    {**call("a"), "index": 0, "function": {"name": "ls", "arguments": '{"path":"."}'}}
                ],
            },
        ),
        (FUNCTION, {**FUNCTION, "id": "fc_1", "status": "completed", "arguments": '{"x":1}'}),
        (result("a"), {**result("a"), "name": "ls", "content": [{"type": "text", "text": "ok"}]}),
    ],
)
def test_what_clients_rewrite_makes_no_difference(one, other):
    assert read(one) == read(other) and read(one).hash


DIFFERENT = [
    user("Hi"),
    user("Ho"),
    assistant(text="Hi"),
    assistant("a", text="Hi"),
    assistant("b", text="Hi"),
    assistant("a", "b", text="Hi"),
    {
        "role": "assistant",
        "content": "Hi",
        "tool_calls": [{"id": "a", "custom": {"name": "f", "input": "x"}}],
    },
    {"role": "system", "content": "Hi"},
    result("a"),
    result("b"),
    FUNCTION,
    {**FUNCTION, "arguments": '{"x": 2}'},
    {"type": "function_call_output", "call_id": "a", "output": "Hi"},
    {"type": "local_shell_call", "call_id": "a", "action": {"command": ["ls"]}},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:1"}}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:2"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "ok"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "no"}]},
    {"role": "assistant", "content": [{**USE, "id": "u"}]},
]


def test_what_matters_makes_a_difference():
    assert len({read(item).hash for item in DIFFERENT}) == len(DIFFERENT)


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (user(), USER),
        (assistant(), ASSISTANT),
        (result("a"), TOOL),
        ({"role": "developer", "content": "x"}, SYSTEM),
        (FUNCTION, ASSISTANT),
        ({"type": "custom_tool_call_output", "call_id": "a", "output": [{"text": "x"}]}, TOOL),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]}, TOOL),
        ({"type": "reasoning", "summary": []}, ASIDE),
        ({"type": "item_reference", "id": "x"}, ASIDE),
        ({"role": ["user"]}, NOTHING),
        ({"role": "user", "content": ["Hi", 3, {"type": 3}]}, USER),
        ({"role": "assistant", "tool_calls": [3, {"function": 3}]}, ASSISTANT),
        (3, NOTHING),
        (None, NOTHING),
    ],
)
def test_kinds(item, kind):
    assert read(item).kind == kind


def test_what_the_answer_said_and_whether_it_called():
    assert read(assistant("a", text="Hi")) == Item(
        ASSISTANT, read(assistant("a", text="Hi")).hash, text_hash("Hi"), True, ("a",)
    )
    assert not read(assistant(text="Hi")).has_calls and read(FUNCTION).text == 0


def test_items_that_cannot_be_read():
    assert read_item(raws([{}])[0]).kind == NOTHING
    assert read_item(b"{" * 5).kind == NOTHING  # type: ignore[arg-type]


def test_arguments():
    assert canonical_arguments('{"a": 1}') == {"a": 1} == canonical_arguments({"a": 1})
    assert canonical_arguments(" {broken ") == "{broken"


names = st.sampled_from(["role", "type", "content", "tool_calls", "function", "arguments", "text", "output"])
words = st.sampled_from(["tool", "assistant", "user", "function_call", "tool_use", "tool_result", "image"])
json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=4) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)


@given(json_values)
def test_any_item(item):
    assert read(item) == read(item)


@pytest.mark.parametrize(
    ("content", "has_failed"),
    [
        ("all is well", False),
        ("no errors found", False),
        ("error: no such option", True),
        ("Traceback (most recent call last):", True),
        ("bash: foo: command not found", True),
        ("cat: x: No such file or directory", True),
        ("exit code: 2", True),
        ("exit code: 0", False),
        ("line\nERROR in it", True),
        ("x" * 4000 + "\nerror: too far away", False),
    ],
)
def test_a_result_may_say_that_its_tool_failed(content, has_failed):
    assert read(result("call_1") | {"content": content}).has_failed is has_failed


OLD_THOUGHT = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<thinking>", "</thinking>", "a", "<", "\n"]), max_size=12
    )
)
def test_thought_is_what_stands_between_the_tags(pieces):
    text = "".join(pieces)
    assert without_thought(text) == OLD_THOUGHT.sub("", text)


def test_a_large_item_is_known_by_its_bytes():
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x" * 2**20}}]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "y" * 2**20}
    one, other = (read_item(raw) for raw in raws([image, result]))
    assert (one.kind, one.text, one.ids) == (USER, 0, ())
    assert (other.kind, other.ids) == (TOOL, ("call_1",))
    assert read_item(raws([image])[0]).hash == one.hash != other.hash


def test_an_item_of_many_values_is_known_by_its_bytes():
    dense = {"role": "user", "content": [[]] * 2**14}
    few = {"role": "user", "content": [[]] * 100}
    assert read_item(raws([dense])[0]).hash != read_item(raws([few])[0]).hash
    assert (
        read_item(raws([{"role": "user", "content": [[]] * 200}])[0]).hash == read_item(raws([few])[0]).hash
    )
    assert read_item(raws([{"role": "nobody", "content": "x" * 2**20}])[0]).kind == NOTHING
    assert read_item(raws([{"type": "reasoning", "content": "x" * 2**20}])[0]).kind == ASIDE
    assert read_item(raws(["x" * 2**20])[0]).kind == NOTHING


def test_of_many_ids_the_newest_are_kept():
    calls = assistant(*(f"call-{number}" for number in range(1000)))
    assert read_item(raws([calls])[0]).ids == tuple(f"call-{number}" for number in range(744, 1000))
