from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.identity.returned_call_ids import MAX_IDS, MAX_ITEMS, Echoes
from gateway.identity.transcript import TranscriptReader
from gateway.wire.body import ResponsesBody
from gateway.wire.slices import finish
from tests.wire.shapes import assistant, decode_body, encode, result, user


def read(items: list[Any]) -> Echoes:
    body = decode_body(encode({"input": items}), is_responses=True)
    assert isinstance(body, ResponsesBody) and isinstance(body.input, list)
    return finish(TranscriptReader().reading(body, body.input))[1]


def chat(*items: Any) -> Echoes:
    return read([{"role": "system", "content": "Be good."}, *items])


def test_parallel_results_of_the_newest_calls():
    echoes = chat(user(), assistant("old"), result("old"), assistant("a", "b"), result("a"), result("b"))
    assert echoes == Echoes(("b", "a"), ("b", "a"))


def test_a_call_whose_result_is_missing_is_echoed_all_the_same():
    assert chat(user(), assistant("a", "b"), result("a")) == Echoes(("a", "b"), ("a",))


def test_a_user_may_speak_after_the_results():
    assert chat(user(), assistant("a"), result("a"), user("And Rome?")) == Echoes(("a",), ("a",))


def test_the_newest_block_that_called_is_the_witness():
    echoes = chat(user(), assistant("old"), result("old"), assistant("a"), result("a"), assistant(), user())
    assert echoes == Echoes(("a",), ())


def test_words_put_into_the_models_mouth_are_no_answer():
    nudge = {"role": "assistant", "content": "Now give your final answer."}
    assert chat(user(), assistant("a"), result("a"), nudge) == Echoes(("a",), ("a",))
    assert chat(user(), assistant("a"), result("a"), nudge, nudge) == Echoes(("a",), ("a",))
    assert chat(user(), assistant("a"), result("a"), assistant(), user(), nudge) == Echoes(("a",), ())
    assert chat(user(), nudge) == Echoes()


def test_attempts_merged_into_one_history_are_one_block():
    assert chat(user(), assistant("a"), assistant("b"), result("b")) == Echoes(("b", "a"), ("b",))


def test_nothing_was_called():
    assert chat(user()) == Echoes()
    assert chat(user(), assistant(), user()) == Echoes()
    assert read([]) == Echoes()


def smol(*call_ids: str) -> dict[str, Any]:
    calls = [
        {"id": i, "type": "function", "function": {"name": "f", "arguments": {"id": "x'"}}} for i in call_ids
    ]
    return {"role": "assistant", "content": [{"type": "text", "text": f"Step.\nCalling tools:\n{calls}"}]}


def test_calls_written_as_text_and_observations():
    observed = user("Observation:\nsunny")
    assert chat(user(), smol("a", "call_b"), observed) == Echoes(("call_b", "a"), ("call_b", "a"))
    assert chat(user(), smol("a"), user("New task")) == Echoes(("a",), ())
    assert chat(user(), smol("a"), observed, assistant(), user()) == Echoes(("a",), ())
    text = {"role": "assistant", "content": "Calling tools: none, {'id': 'x'}"}
    assert chat(user(), text, observed) == Echoes()


def test_results_of_native_calls_are_not_mistaken_for_observations():
    assert chat(assistant("a"), result("a"), user("Observation:\nx")) == Echoes(("a",), ("a",))


def claude(*call_ids: str) -> dict[str, Any]:
    uses = [{"type": "tool_use", "id": call_id, "name": "Bash", "input": {}} for call_id in call_ids]
    return {"role": "assistant", "content": [{"type": "thinking", "thinking": "…"}, *uses]}


def claude_result(*call_ids: str) -> dict[str, Any]:
    results = [{"type": "tool_result", "tool_use_id": call_id, "content": "x"} for call_id in call_ids]
    return {"role": "user", "content": [*results, {"type": "text", "text": "<system-reminder>"}]}


def test_messages():
    items = [user(), claude("old"), claude_result("old"), claude("a", "b"), claude_result("b", "a")]
    assert read(items) == Echoes(("a", "b"), ("a", "b"))
    said = {"role": "assistant", "content": "Done."}
    assert read([*items, said, user()]) == Echoes(("b", "a"), ())


def fc(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "id": "fc", "call_id": call_id, "name": "f", "arguments": "{}"}


def fco(call_id: str, kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "output": "x"}


def test_responses():
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    said = {"type": "message", "role": "assistant", "content": []}
    shell = {"type": "local_shell_call", "call_id": "c", "action": {}}
    first = [user(), reasoning, said, fc("a"), fc("b"), fco("a"), fco("b")]
    assert read(first) == Echoes(("b", "a"), ("b", "a"))
    second = [*first, reasoning, shell, fco("c", "local_shell_call_output")]
    assert read(second) == Echoes(("c",), ("c",))
    assert read([*second, said, user()]) == Echoes(("c",), ())


def test_responses_that_bring_the_results_alone():
    assert read([fco("a"), fco("b", "custom_tool_call_output")]) == Echoes(("b", "a"), ("b", "a"))
    reference = {"type": "item_reference", "id": "fc_1"}
    assert read([user(), reference, fco("a")]) == Echoes(("a",), ("a",))


ODD: list[Any] = [
    None,
    3,
    "text",
    [],
    {},
    {"role": 3},
    {"role": "tool"},
    {"role": "assistant", "tool_calls": {}},
    {"type": []},
]


def test_odd_items_are_passed_over():
    assert read(ODD) == Echoes()


def test_odd_items_do_not_hide_the_others():
    assert chat(*ODD[:6], assistant("a"), *ODD[:6], result("a"), *ODD[:6]) == Echoes(("a",), ("a",))


@pytest.mark.parametrize("call_id", ["", "x" * 257, "a\nb", None, 3])
def test_ids_that_nobody_minted_are_left_out(call_id):
    assert chat(assistant(call_id, "a"), result(call_id), result("a")) == Echoes(("a",), ("a",))


def test_how_far_back_we_look():
    near = [assistant("a"), *[user()] * (MAX_ITEMS - 1)]
    assert chat(*near) == Echoes(("a",), ())
    assert chat(*near, user()) == Echoes()


def test_how_many_ids_we_keep():
    many = [f"c{i}" for i in range(2 * MAX_IDS)]
    echoes = chat(assistant(*many), *map(result, many))
    assert len(echoes.echoed_ids) <= MAX_IDS and echoes.tool_result_ids[0] == many[-1]
    in_one_message = read([claude(*many), claude_result(*many)])
    assert len(in_one_message.echoed_ids) == len(in_one_message.tool_result_ids) == MAX_IDS
    flood = read([claude("x"), *[claude_result(*many[i : i + 200]) for i in (0, 200)]])
    assert len(flood.tool_result_ids) == MAX_IDS


names = st.sampled_from(["role", "type", "content", "tool_calls", "id", "call_id"])
words = st.sampled_from(["tool", "assistant", "user", "function_call", "Calling tools:"])
json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=4) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)


@example([{"role": "assistant", "tool_calls": 1}])
@given(st.lists(json_values, max_size=5))
def test_any_items(items):
    echoes = read(items)
    assert set(echoes.tool_result_ids) <= set(echoes.echoed_ids)
