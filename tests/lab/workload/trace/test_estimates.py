"""Tokens from bytes."""

import pytest

from lab.workload.trace.estimates import FRAME_TOKENS, message_tokens, text_bytes


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, 0),
        ("", 0),
        ("abc", 3),
        ("é", 2),
        (["ab", {"text": "c"}], 3),
        ({"role": "user", "id": "call-1", "content": "abcd"}, 4),
        ({"function": {"name": "f", "arguments": "{}"}}, 2),
        (12, 2),
        (True, 4),
    ],
)
def test_texts_count_and_ids_do_not(value, size):
    assert text_bytes(value) == size


def test_a_message_has_a_frame():
    assert message_tokens({"role": "user", "content": ""}) == FRAME_TOKENS
    assert message_tokens({"role": "user", "content": "x" * 9}) == FRAME_TOKENS + 3
