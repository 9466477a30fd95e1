"""How answers call tools: names in their text, and the first words of their calls."""

import pytest

from gateway.domain.request import NO_MANNER
from gateway.identity.tool_call_style import read_manner


@pytest.mark.parametrize(
    ("spoken", "names", "is_code"),
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
def test_calls_in_text(spoken, names, is_code):
    manner = read_manner(spoken, ())
    assert (manner.names, manner.is_code) == (names, is_code)


@pytest.mark.parametrize(
    "spoken",
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
def test_no_call(spoken):
    assert read_manner(spoken, ()).names == ()


def test_nothing_was_said():
    assert read_manner("", ()) == NO_MANNER


def test_the_last_word_and_its_mark():
    over, same, other = (
        read_manner(text, ()).close
        for text in ("Done. Safe travels! 👋", "All is booked, safe  Travels!", "Shall I book those travels?")
    )
    assert over == same != other != 0 and read_manner("…", ()).close == 0


def test_what_is_run_counts_and_not_where():
    one, other = b'{"command": "cd /a/b && python -m pytest"}', b'{"command":"python x.py"}'
    assert read_manner("", (one,)) == read_manner("", (other,)) != NO_MANNER
    assert read_manner("", (one,)) != read_manner("", (b'{"command": "git diff"}',))
    assert read_manner("", (b'{"command": "npm test"}',)) != read_manner("", (b'{"command": "pm test"}',))
    assert read_manner("", (b'{"command": "A=1 npm i"}',)) == read_manner("", (b'{"command": "npm test"}',))


def test_arguments_that_are_none():
    assert read_manner("", (b"{}",)).names == () and read_manner("", (b"\xff",)) is not None


def test_a_line_that_names_nothing_is_passed_over():
    assert read_manner("Action: no, such!\nAction: ls\nAction Input: x", ()).names == ("ls",)
    assert read_manner("Action: ls\nAction: no, such!", ()).names == ()
