"""The script format: what is accepted, which reply a prompt gets, how it is written out."""

import pytest

from scripted_engine.chatml import Prompt
from scripted_engine.script import (
    Script,
    ScriptBook,
    ScriptError,
    ToolCall,
    Turn,
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


def test_the_first_marker_wins() -> None:
    book = ScriptBook({"a": Script((Turn("A"),)), "b": Script((Turn("B"),))})
    assert first(book, ask(0, "no marker", "x [[script:b]] [[script:a]]", "[[script:a]]")) == "B"


def test_conversations_without_marker_get_the_default() -> None:
    assert first(ScriptBook({}, Script((Turn("Default."),))), ask(5, "hello")) == "Default."
    assert ScriptBook({}, None).reply(ask(0, "hello")) is None


def test_without_tools_a_calling_script_speaks_its_side_text() -> None:
    assert first(BOOK, ask(0, tools=False)) == "A title"
    assert first(BOOK, ask(2, tools=False)) == "A title"


def test_renderings_for_grammars_come_in_order() -> None:
    assert renderings(LOOK) == (
        render_hermes(LOOK),
        render_hermes(Turn("", LOOK.tool_calls)),
        '[{"name": "bash", "parameters": {"command": "ls"}}]',
        '{"command": "ls"}',
        "I look.",
    )
    assert renderings(FIXED) == ("Fixed.",)


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
