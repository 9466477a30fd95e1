"""The script format: what is accepted, which reply a prompt gets, how it is written out."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripted_engine.chatml import Prompt
from scripted_engine.script import (
    BUILT_IN_DEFAULT,
    Script,
    ScriptBook,
    ScriptError,
    ToolCall,
    Turn,
    load,
    parse,
    render_hermes,
    renderings,
)

LOOK = Turn("I look.", (ToolCall("bash", {"command": "ls"}),))
READ = Turn("", (ToolCall("read", {"path": "a"}), ToolCall("read", {"path": "ü"})))
FIXED = Turn("Fixed.")
BOOK = ScriptBook({"fix": Script((LOOK, READ, FIXED), without_tools="A title")})


def ask(turns: int = 0, *texts: str, tools: bool = True, chat: bool = True) -> Prompt:
    return Prompt(texts or ("please [[script:fix]]",), turns, tools, chat)


def first(book: ScriptBook, prompt: Prompt) -> str:
    reply = book.reply(prompt)
    assert reply is not None
    return reply[0]


@pytest.mark.parametrize(("turns", "expected"), [(0, LOOK), (1, READ), (2, FIXED)])
def test_the_number_of_assistant_turns_picks_the_turn(turns: int, expected: Turn) -> None:
    assert first(BOOK, ask(turns)) == render_hermes(expected)


@pytest.mark.parametrize("turns", [3, 4, 99])
def test_past_the_end_the_last_text_is_repeated(turns: int) -> None:
    assert first(BOOK, ask(turns)) == "Fixed."


def test_past_the_end_final_wins_and_a_last_call_is_not_repeated() -> None:
    assert first(ScriptBook({"fix": Script((LOOK,), final="Bye.")}), ask(1)) == "Bye."
    assert first(ScriptBook({"fix": Script((LOOK,))}), ask(1)) == "Done."


def test_the_first_marker_wins() -> None:
    book = ScriptBook({"a": Script((Turn("A"),)), "b": Script((Turn("B"),))})
    assert first(book, ask(0, "no marker", "x [[script:b]] [[script:a]]", "[[script:a]]")) == "B"


def test_an_unknown_name_does_not_fall_through_to_a_later_marker() -> None:
    assert first(BOOK, ask(0, "[[script:nobody]]", "[[script:fix]]")) == BUILT_IN_DEFAULT.turns[0].text


def test_conversations_without_marker_get_the_default() -> None:
    assert first(ScriptBook({}, Script((Turn("Default."),))), ask(5, "hello")) == "Default."
    assert ScriptBook({}, None).reply(ask(0, "hello")) is None


def test_without_tools_a_calling_script_speaks_its_side_text() -> None:
    assert first(BOOK, ask(0, tools=False)) == "A title"
    assert first(BOOK, ask(2, tools=False)) == "A title"


def test_without_tools_and_side_text_the_turns_own_text_then_the_final_one() -> None:
    book = ScriptBook({"fix": Script((LOOK, READ, FIXED))})
    assert [first(book, ask(n, tools=False)) for n in range(3)] == ["I look.", "Fixed.", "Fixed."]


def test_without_tools_a_script_that_calls_nothing_plays_on() -> None:
    book = ScriptBook({"fix": Script((Turn("One."), Turn("Two.")), without_tools="A title")})
    assert first(book, ask(1, tools=False)) == "Two."


def test_a_raw_completion_gets_the_turn_as_written() -> None:
    assert first(BOOK, ask(0, tools=False, chat=False)) == render_hermes(LOOK)


def test_hermes_text() -> None:
    assert render_hermes(LOOK) == (
        'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    )
    assert render_hermes(READ) == (
        '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "read", "arguments": {"path": "ü"}}\n</tool_call>'
    )


def test_renderings_for_grammars_come_in_order() -> None:
    assert renderings(LOOK) == (
        render_hermes(LOOK),
        render_hermes(Turn("", LOOK.tool_calls)),
        '[{"name": "bash", "parameters": {"command": "ls"}}]',
        '{"command": "ls"}',
        "I look.",
    )
    assert renderings(FIXED) == ("Fixed.",)


def test_renderings_of_several_calls() -> None:
    first_call, second_call = (render_hermes(Turn("", (call,))) for call in READ.tool_calls)
    assert renderings(READ) == (
        f"{first_call}\n{second_call}",
        f"{first_call}{second_call}",
        '[{"name": "read", "parameters": {"path": "a"}}, {"name": "read", "parameters": {"path": "ü"}}]',
        first_call,
        second_call,
        '{"path": "a"}',
        '{"path": "ü"}',
    )


def test_a_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    call = {"name": "bash", "arguments": {"command": "ls"}}
    turns: list[Any] = [{"text": "I look.", "tool_calls": [call]}, {"text": "Fixed."}]
    script = {"turns": turns, "without_tools": "T", "final": "F"}
    path.write_text(json.dumps({"default": {"turns": [{"text": "?"}]}, "scripts": {"fix-1.b_c": script}}))
    assert load(path) == ScriptBook(
        {"fix-1.b_c": Script((LOOK, FIXED), "T", "F")}, default=Script((Turn("?"),))
    )


def test_default_left_out_and_null() -> None:
    assert parse({}).default is BUILT_IN_DEFAULT
    assert parse({"default": None}).default is None


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ([], "the file: must be an object, not list"),
        ({"skripts": {}}, "the file: unknown skripts"),
        ({"scripts": []}, "scripts: must be an object"),
        ({"scripts": {"a b": {"turns": [{"text": "x"}]}}}, "the name 'a b' does not fit"),
        ({"scripts": {"a": {"turns": []}}}, r"scripts\.a\.turns: .* at least one"),
        ({"scripts": {"a": {}}}, r"scripts\.a\.turns: .* at least one"),
        ({"scripts": {"a": {"turns": [{}]}}}, r"scripts\.a\.turns\[0\]: needs a text or a tool call"),
        ({"scripts": {"a": {"turns": [{"text": 1}]}}}, r"turns\[0\]\.text: must be a string"),
        ({"scripts": {"a": {"turns": [{"txt": "x"}]}}}, r"turns\[0\]: unknown txt"),
        ({"scripts": {"a": {"turns": [{"tool_calls": {}}]}}}, r"tool_calls: must be a list"),
        ({"scripts": {"a": {"turns": [{"tool_calls": [{}]}]}}}, r"tool_calls\[0\]\.name: missing"),
        (
            {"scripts": {"a": {"turns": [{"tool_calls": [{"name": "x", "arguments": "{}"}]}]}}},
            r"tool_calls\[0\]\.arguments: must be an object, not str",
        ),
        ({"default": {"turns": [{"text": "x"}], "final": []}}, r"default\.final: must be a string"),
    ],
)
def test_a_wrong_script_is_refused_with_its_place(document: object, complaint: str) -> None:
    with pytest.raises(ScriptError, match=complaint):
        parse(document)


@pytest.mark.parametrize("content", ["{", '{"scripts": 1}', None])
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "script.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ScriptError, match=r"script\.json"):
        load(path)
