"""How answers call tools: names in their text, and the first words of their calls."""

import pytest

from gateway.domain.request import NO_TOOL_CALL_STYLE
from gateway.identity.tool_call_style import read_tool_call_style


@pytest.mark.parametrize(
    ("response_text", "names", "is_code"),
    [
        (
            'Thought: go\nAction: get_data\nAction Input: {"n": 1}\nObservation: no',
            ("get_data",),
            False,
        ),
        ("Thought: go\nAction: `search the web`\nAction Input: x", ("search the web",), False),
        ("<function=run>\n<parameter=cmd>ls</parameter></function>", ("run",), False),
        ('<invoke name="a"></invoke><invoke name="b"></invoke>', ("a", "b"), False),
        ('<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>', ("look",), False),
        ("THOUGHT: hm\n```bash\nls -l\n```", ("bash",), True),
        ("THOUGHT: hm\n```python\nprint(1)\n```", ("python",), True),
        ("Let me look.\n```\nfind_file x.py\n```", ("find_file",), True),
    ],
)
def test_calls_in_text(response_text, names, is_code):
    style = read_tool_call_style(response_text, ())
    assert (style.names, style.is_code) == (names, is_code)


@pytest.mark.parametrize(
    "response_text",
    [
        "Just an answer.",
        "Action: none\nis asked of you",
        "Action Input: but no action",
        "two blocks\n```bash\nls\n```\nor\n```bash\nls -l\n```",
        "```json\n{}\n```",
        "``` unfinished",
        "```\n\n```",
        "<b>bold</b> <function>",
    ],
)
def test_no_call(response_text):
    assert read_tool_call_style(response_text, ()).names == ()


def test_nothing_was_said():
    assert read_tool_call_style("", ()) == NO_TOOL_CALL_STYLE


def test_the_last_word_and_its_mark():
    over, same, other = (
        read_tool_call_style(text, ()).close
        for text in ("Done. Safe travels! 👋", "All is booked, safe  Travels!", "Shall I book those travels?")
    )
    assert over == same != other != 0 and read_tool_call_style("…", ()).close == 0


def test_what_is_run_counts_and_not_where():
    one, other = b'{"command": "cd /a/b && python -m pytest"}', b'{"command":"python x.py"}'
    assert read_tool_call_style("", (one,)) == read_tool_call_style("", (other,)) != NO_TOOL_CALL_STYLE
    assert read_tool_call_style("", (one,)) != read_tool_call_style("", (b'{"command": "git diff"}',))
    assert read_tool_call_style("", (b'{"command": "npm test"}',)) != read_tool_call_style(
        "", (b'{"command": "pm test"}',)
    )
    assert read_tool_call_style("", (b'{"command": "A=1 npm i"}',)) == read_tool_call_style(
        "", (b'{"command": "npm test"}',)
    )


def test_arguments_that_are_none():
    assert read_tool_call_style("", (b"{}",)).names == () and read_tool_call_style("", (b"\xff",)) is not None


def test_a_line_that_names_nothing_is_passed_over():
    assert read_tool_call_style("Action: no, such!\nAction: ls\nAction Input: x", ()).names == ("ls",)
    assert read_tool_call_style("Action: ls\nAction: no, such!", ()).names == ()
