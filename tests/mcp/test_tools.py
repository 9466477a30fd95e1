import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp.tools import ToolUse, arguments_key, is_shown_as, read_tool_use

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text()
    | st.floats(allow_nan=False, width=32),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_arguments_written_anew_are_the_same(arguments):
    backwards = dict(reversed(arguments.items()))
    keys = {
        arguments_key(text.encode("utf-8", "surrogatepass"))
        for text in (
            json.dumps(arguments),
            json.dumps(backwards, indent=2),
            json.dumps(arguments, separators=(",", ":")),
        )
    }
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [(b"", b"{}"), (b"null", b" {} "), (b'{"a":1.0}', b'{"a":1}'), (b'{"a":"\\u0062"}', b'{"a":"b"}')],
)
def test_equal_values_have_one_key(one, other):
    assert arguments_key(one) == arguments_key(other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a":1}', b'{"a":"1"}'),
        (b'{"a":1}', b'{"a":true}'),
        (b'{"a":[1,2]}', b'{"a":[2,1]}'),
        (b"{}", b'{"a":null}'),
    ],
)
def test_other_values_have_another(one, other):
    assert arguments_key(one) != arguments_key(other)


@pytest.mark.parametrize(
    "text",
    [b'{"a":"%s"}' % (b"x" * 2**17), b"{", b"[]", b"1", b'"{}"', b'{"a":' + b"[" * 70 + b"]" * 70 + b"}"],
)
def test_what_is_no_object_or_too_large_has_none(text):
    assert arguments_key(text) is None


@pytest.mark.parametrize(
    ("shown", "tool", "is_it"),
    [
        ("mcp__files__read", "read", True),
        ("files_read", "read", True),
        ("read", "read", True),
        ("mcp__s__a_b", "a.b", True),
        ("reread", "read", False),
        ("read", "read_all", False),
        ("read", "", False),
    ],
)
def test_a_tool_is_known_by_how_its_name_ends(shown, tool, is_it):
    assert is_shown_as(shown, tool) is is_it


def test_the_params_of_a_call_are_read():
    assert read_tool_use(b'{"name":"x"}') == ToolUse("x", b"{}")
    assert read_tool_use(b'{"name":"x","arguments":{"a": 1},"_meta":{}}') == ToolUse("x", b'{"a": 1}')
    for field in (b"claudecode/toolUseId", b"callId"):
        use = read_tool_use(b'{"name":"x","_meta":{"%s":"c1"}}' % field)
        assert use is not None and use.call_id == "c1"
    use = read_tool_use(b'{"name":"x","_meta":{"callId":1}}')
    assert use is not None and use.call_id is None
    assert read_tool_use(b"[]") is None and read_tool_use(b"") is None
