"""Which headers travel end to end, and which belong to one connection only.

Source: RFC 9110 §7.6.1 (Connection), RFC 9112 §6 (message framing is per hop).
"""

from typing import Final

from gateway.wire.headers import RawHeaders

_PER_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
_PLAIN_CONNECTION: Final = frozenset((b"keep-alive", b"close", b""))
# A client may not use Connection to take away the fields that we judge it by (RFC 9110 §7.6.1).
_NEVER_PER_HOP: Final = frozenset(
    (b"authorization", b"x-api-key", b"host", b"content-length", b"content-type", b"content-encoding")
)


def end_to_end(headers: RawHeaders, drop: frozenset[bytes] = frozenset()) -> RawHeaders:
    """The fields to pass on: all but the per-hop ones, those that `Connection` names, and `drop`.

    `drop` holds lower-case names.
    """
    gone = _PER_HOP | drop
    for name, value in headers:
        if len(name) == 10 and name.lower() == b"connection" and value.lower() not in _PLAIN_CONNECTION:
            gone |= {token.strip().lower() for token in value.split(b",")} - _NEVER_PER_HOP
    return [field for field in headers if field[0].lower() not in gone]
