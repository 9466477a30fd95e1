"""Which ids of clients are accepted."""

import pytest

from gateway.domain.ids import MAX_ID_CHARS, is_well_formed_id


@pytest.mark.parametrize("text", ["x", "call_0", "a b", "日本", "x" * MAX_ID_CHARS])
def test_well_formed(text):
    assert is_well_formed_id(text)


@pytest.mark.parametrize("text", ["", "x" * (MAX_ID_CHARS + 1), "a\nb", "a\x00", "\x7f", "a\u2028b"])
def test_not_well_formed(text):
    assert not is_well_formed_id(text)
