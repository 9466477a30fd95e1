"""Which ids of clients are accepted."""

import pytest

from gateway.domain.ids import MAX_ID_CHARS, clean_name, is_well_formed_id


@pytest.mark.parametrize("text", ["x", "call_0", "a b", "日本", "x" * MAX_ID_CHARS])
def test_well_formed(text):
    assert is_well_formed_id(text)


@pytest.mark.parametrize("text", ["", "x" * (MAX_ID_CHARS + 1), "a\nb", "a\x00", "\x7f", "a\u2028b"])
def test_not_well_formed(text):
    assert not is_well_formed_id(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [("coder", "coder"), ("", ""), ("a\r\nb\x1b[2J", "a??b?[2J"), ("x" * 1_000_000, "x" * MAX_ID_CHARS)],
)
def test_a_name_is_short_and_printable(text, name):
    assert clean_name(text) == name
