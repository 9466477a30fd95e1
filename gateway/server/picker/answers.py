"""What Envoy is answered, in the bytes of `ProcessingResponse`, and what another picker is sent (pure).

Source: `envoy/service/ext_proc/v3/external_processor.proto`, and protobuf's encoding. By hand: protobuf's
runtime takes three times as long to put headers into messages.
"""

from collections.abc import Iterable
from typing import Final

from gateway.server.request_head import RequestHead
from gateway.upstream.replica import Replica
from gateway.wire.headers import RawHeaders

REQUEST_HEADERS, RESPONSE_HEADERS, REQUEST_BODY, RESPONSE_BODY, REQUEST_TRAILERS, RESPONSE_TRAILERS = range(
    1, 7
)
"""Which message is answered."""
_IMMEDIATE: Final = 7
_METADATA: Final = 8
DESTINATION: Final = b"x-gateway-destination-endpoint"
"""Where the Gateway API inference extension has the endpoint: a header, and metadata of `envoy.lb`."""
_OF_ENVOY: Final = frozenset((b"host", b"content-length", b"expect", b"transfer-encoding", b"connection"))
"""Envoy frames what it sends on."""
_PIECE: Final = 48 << 10
"""Bytes of a body in one message, where bodies are passed back; gRPC takes 4 MiB, Envoy's buffers 64 KiB."""


def _part(number: int, value: bytes) -> bytes:
    """A field that holds a text, bytes or a message."""
    size = len(value)
    if size < 0x80:
        return b"%c%c%b" % (number << 3 | 2, size, value)
    return b"%c%b%b" % (number << 3 | 2, _varint(size), value)


def _number(number: int, value: int) -> bytes:
    """A field that holds a number, or whether something is so."""
    return b"%c%b" % (number << 3, _varint(value))


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


_OVERWRITE: Final = _number(3, 2)
"""`append_action`: OVERWRITE_IF_EXISTS_OR_ADD."""
_CLEAR_ROUTE: Final = _number(5, 1)


def setting(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Of a `HeaderMutation`: of several of one name the last counts."""
    return b"".join(
        [_part(1, _part(1, _part(1, name) + _part(3, value)) + _OVERWRITE) for name, value in headers]
    )


def removing(names: Iterable[bytes]) -> bytes:
    """Of a `HeaderMutation`."""
    return b"".join([_part(2, name) for name in names])


def go_on(of: int, headers: bytes = b"") -> bytes:
    """`headers`: a `HeaderMutation`."""
    return _part(of, _part(1, _part(2, headers)) if headers else b"")


def sent_on(of: int, headers: bytes, endpoint: bytes, *, body: bytes | None = None) -> bytes:
    """To an endpoint, `IP:PORT`; `headers`: a `HeaderMutation`; `body`: in place of the client's."""
    common = _part(2, headers + setting([(DESTINATION, endpoint)]))
    if body is not None:
        common += _part(3, _part(1, body))
    return _part(of, _part(1, common + _CLEAR_ROUTE)) + _part(
        _METADATA, _entry(b"envoy.lb", _part(5, _entry(DESTINATION, _part(3, endpoint))))
    )


def _entry(key: bytes, value: bytes) -> bytes:
    """Of a `Struct`."""
    return _part(1, _part(1, key) + _part(2, value))


def pieces(of: int, body: bytes, *, is_last: bool) -> list[bytes]:
    """A body, or a part of one, passed back."""
    made = []
    for begin in range(0, max(1, len(body)), _PIECE):
        piece = _part(1, body[begin : begin + _PIECE])
        if is_last and begin + _PIECE >= len(body):
            piece += _number(2, 1)
        made.append(_part(of, _part(1, _part(3, _part(3, piece)))))
    return made


def immediate(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, why: str) -> bytes:
    made = _part(1, _number(1, status)) + _part(2, setting(headers)) + _part(3, body)
    return _part(_IMMEDIATE, made + _part(5, b"turnpike_" + why.encode("ascii")))


def with_headers(begin: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The message with a request's headers, and with these after them, for another picker: protobuf reads the
    parts of a message as one."""
    fields = b"".join([_part(1, _part(1, name) + _part(3, value)) for name, value in headers])
    return begin + _part(2, _part(1, fields))


def request_body(body: bytes, *, is_last: bool) -> bytes:
    """The same of its body."""
    return _part(4, _part(1, body) + (_number(2, 1) if is_last else b""))


TRAILERS: Final = _part(6, b"")
"""The same of its trailers."""


def following(head: RequestHead, lines: bytes, replica: Replica) -> bytes:
    """The `HeaderMutation` that makes Envoy's headers those of `lines`: a request line and fields."""
    start, _, rest = lines.partition(b"\r\n")
    had = {(name.lower(), value) for name, value in head.headers}
    wanted = [(name.lower(), value) for name, value in fields(rest)]
    names = {name for name, _ in wanted}
    new = [each for each in wanted if each not in had and each[0] not in _OF_ENVOY]
    if replica.address.prefix:
        new.append((b":path", start.split(b" ")[1]))
    gone = dict.fromkeys(name for name, _ in had if name not in names and name not in _OF_ENVOY)
    return setting(new) + removing(gone)


def fields(lines: bytes) -> RawHeaders:
    """Of lines that we wrote."""
    found = []
    for line in lines.split(b"\r\n"):
        name, colon, value = line.partition(b": ")
        if colon:
            found.append((name, value))
    return found
