"""Which headers travel end to end, and which belong to one connection only.

Source: RFC 9110 §7.6.1 (Connection), RFC 9112 §6 (message framing is per hop).
"""

from collections.abc import Iterable
from typing import Final

from gateway.wire.headers import RawHeaders

_PER_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)


def end_to_end(headers: RawHeaders, drop: frozenset[bytes] = frozenset()) -> RawHeaders:
    """The fields to pass on: all but the per-hop ones, those that `Connection` names, and `drop`.

    `drop` holds lower-case names.
    """
    named = _named_by_connection(headers)
    return [
        (name, value)
        for name, value in headers
        if (lower := name.lower()) not in _PER_HOP and lower not in drop and lower not in named
    ]


def _named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    named: frozenset[bytes] = frozenset()
    for name, value in headers:
        if len(name) == 10 and name.lower() == b"connection" and value.lower() not in _PLAIN_CONNECTION:
            named |= {token.strip().lower() for token in value.split(b",")}
    # A client may not use Connection to take away the fields that we judge it by (RFC 9110 §7.6.1).
    return named - _NEVER_PER_HOP


_PLAIN_CONNECTION: Final = frozenset((b"keep-alive", b"close", b""))
_NEVER_PER_HOP: Final = frozenset(
    (b"authorization", b"x-api-key", b"host", b"content-length", b"content-type", b"content-encoding")
)
