"""What differs between a request as it came and as it is to go on; bodies in pieces."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.server.picker import answers
from tests.examples import examples


@settings(max_examples=examples(40))
@given(size=st.integers(0, 200_000), is_last=st.booleans())
def test_a_body_in_pieces(size, is_last):
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    made = answers.pieces(answers.RESPONSE_BODY, body, is_last=is_last)
    sent = [each.response_body.response.body_mutation.streamed_response for each in made]
    assert b"".join(each.body for each in sent) == body
    assert [each.end_of_stream for each in sent] == [False] * (len(sent) - 1) + [is_last]
    assert all(len(each.body) < 1 << 16 for each in sent)


def test_only_what_is_different_is_sent():
    head: Any = SimpleNamespace(
        headers=[(b"X-Same", b"1"), (b"x-changed", b"1"), (b"x-gone", b"1"), (b"Host", b"h")]
    )
    replica: Any = SimpleNamespace(address=SimpleNamespace(prefix=b""))
    lines = (
        b"POST /p/v1/x HTTP/1.1\r\nHost: other\r\nx-same: 1\r\nX-Changed: 2\r\nx-new: a: b\r\nConnection: x"
    )
    change = answers.following(head, lines, replica)
    assert change == ([(b"x-changed", b"2"), (b"x-new", b"a: b")], [b"x-gone"])
    replica.address.prefix = b"/p"
    assert (b":path", b"/p/v1/x") in answers.following(head, lines, replica).added
