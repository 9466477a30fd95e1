"""A head is known again only if a strict parser has read the very same bytes, length apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.known_head import KnownHead, KnownHeads, know_head

BEFORE, AFTER = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ", b"\r\nX: y\r\n\r\n"


def message(body: bytes, length: bytes | None = None, before: bytes = BEFORE, after: bytes = AFTER) -> bytes:
    return before + (b"%d" % len(body) if length is None else length) + after + body


def known(data: bytes, body_bytes: int) -> KnownHead | None:
    return know_head(data[: len(data) - body_bytes], body_bytes)


def body_of(data: bytes) -> bytes | None:
    """Of one whole message that begins with the known head."""
    found = KNOWN.find(data) if KNOWN is not None else None
    return data[found[0] :] if found is not None and sum(found) == len(data) else None


KNOWN = known(message(b"hello"), 5)


@pytest.mark.parametrize("body", [b"", b"x", b"hello", b"x" * 100_000, b"\r\n\r\n", BEFORE])
def test_another_body_is_found(body):
    assert body_of(message(body)) == body


@pytest.mark.parametrize(
    "data",
    [
        message(b"hello") + b"\r\n",  # what follows would be taken for a part of the head
        b"\r\n\r\n" + message(b"hello"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + message(b"hello"),
        message(b"hello", b"05"),
        message(b"hello", b"4"),
        message(b"hello", b"5\r\nContent-Length: 5"),
        message(b"hello", b"5\r\ncontent-length-x: 5"),
        message(b"hello", after=b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
        message(b"hello", after=b"\r\nTransfer-Encoding : chunked\r\n\r\n"),
        message(b"hello", after=b"\r\nUpgrade: h2c\r\n\r\n"),
        message(b"hello", after=b"\r\nExpect: 100-continue\r\n\r\n"),
        message(b"hello", after=b"\r\nX: %s\r\n\r\n" % (b"y" * 10_000)),
        b"POST / HTTP/1.1\r\nHost: a\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nX: a\r\n Content-Length: 5\r\n\r\nhello",
    ],
)
def test_such_heads_are_read_each_time(data):
    assert known(data, 5) is None


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_no_edit_of_a_message_is_taken_for_another_length(noise, at, cut):
    """Whatever stands there, what is known again has the head's bytes and a plain length that fits."""
    data = message(b"hello")
    edited = data[:at] + noise + data[at + cut :]
    body = body_of(edited)
    assert body is None or edited == message(body)


def test_heads_of_all_connections_are_found_by_address_and_bytes_and_bounded():
    heads = KnownHeads[int]()
    for number in range(1000):
        data = message(b"hello", after=b"\r\nX: %d\r\n\r\n" % number)
        head = known(data, 5)
        assert head is not None and heads.find("a", data) is None
        heads.add("a", head, number)
        assert heads.find("a", data[:-5] + b"x") == (head, number) and heads.find("b", data) is None
        assert heads.find("a", data[:-8]) is None, "its end has not come"
    assert len(heads._known) < 300
