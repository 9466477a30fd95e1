"""The opening handshake of a WebSocket."""

import pytest

from gateway.wire.handshake import accept_of, is_handshake, key_of

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
FIELDS = [(b"Host", b"a"), (b"SEC-WebSocket-Key", KEY), (b"sec-websocket-VERSION", b"13")]


def test_the_example_of_the_rfc():
    assert accept_of(KEY) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert key_of(FIELDS) == KEY and is_handshake(b"GET", FIELDS, "1.1")


@pytest.mark.parametrize(
    ("method", "fields", "version"),
    [
        (b"POST", FIELDS, "1.1"),
        (b"GET", FIELDS, "1.0"),
        (b"GET", FIELDS[:2], "1.1"),
        (b"GET", [*FIELDS[:2], (b"Sec-WebSocket-Version", b"8")], "1.1"),
        (b"GET", [*FIELDS, FIELDS[2]], "1.1"),
        (b"GET", [*FIELDS, FIELDS[1]], "1.1"),
        (b"GET", [FIELDS[2], (b"Sec-WebSocket-Key", b"short")], "1.1"),
        (b"GET", FIELDS[2:], "1.1"),
    ],
)
def test_what_is_none(method, fields, version):
    assert not is_handshake(method, fields, version)
