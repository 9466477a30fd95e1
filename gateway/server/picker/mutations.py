"""What Envoy is told to change: headers as the proxy would send them, bodies passed back (pure)."""

from typing import Any, Final

from gateway.server.picker import messages
from gateway.server.request_head import RequestHead
from gateway.upstream.replica import Replica
from gateway.wire.headers import RawHeaders

_OF_ENVOY: Final = frozenset((b"host", b"content-length", b"expect", b"transfer-encoding", b"connection"))
"""Envoy frames what it sends on."""
_PIECE: Final = 48 << 10
"""Bytes of a body in one message, where bodies are passed back; gRPC takes 4 MiB, Envoy's buffers 64 KiB."""


def pieces(field: str, body: bytes, is_last: bool) -> list[Any]:
    """A body, or a part of one, passed back."""
    told = []
    for begin in range(0, max(1, len(body)), _PIECE):
        reply = messages.ProcessingResponse()
        piece = getattr(reply, field).response.body_mutation.streamed_response
        piece.body = body[begin : begin + _PIECE]
        piece.end_of_stream = is_last and begin + _PIECE >= len(body)
        told.append(reply)
    return told


def follow(mutation: Any, head: RequestHead, lines: bytes, replica: Replica) -> None:
    """Makes Envoy's headers those of `lines`: a request line and fields."""
    start, _, rest = lines.partition(b"\r\n")
    if replica.address.prefix:
        messages.mutate(mutation, [(b":path", start.split(b" ")[1])])
    had = {(name.lower(), value) for name, value in head.headers}
    wanted = [(name.lower(), value) for name, value in fields(rest)]
    names = {name for name, _ in wanted}
    messages.mutate(mutation, [each for each in wanted if each not in had and each[0] not in _OF_ENVOY])
    gone = dict.fromkeys(name for name, _ in had if name not in names and name not in _OF_ENVOY)
    mutation.remove_headers.extend(gone)


def fields(lines: bytes) -> RawHeaders:
    """Of lines that we wrote."""
    found = []
    for line in lines.split(b"\r\n"):
        name, colon, value = line.partition(b": ")
        if colon:
            found.append((name, value))
    return found
