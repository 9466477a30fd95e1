"""What Envoy is answered (pure)."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from gateway.server.http.request_head import RequestHead
from gateway.server.picker.messages import ProcessingResponse
from gateway.upstream.replica import Replica
from gateway.wire.headers import RawHeaders

REQUEST_HEADERS: Final = "request_headers"
REQUEST_BODY: Final = "request_body"
RESPONSE_BODY: Final = "response_body"
# Where the Gateway API inference extension has the endpoint: a header, and metadata of `envoy.lb`.
DESTINATION: Final = b"x-gateway-destination-endpoint"
# Envoy frames what it sends on.
_OF_ENVOY: Final = frozenset((b"host", b"content-length", b"expect", b"transfer-encoding", b"connection"))
# Bytes of a body in one message, where bodies are passed back; gRPC takes 4 MiB, Envoy's buffers 64 KiB.
_PIECE: Final = 48 << 10
# `append_action`: OVERWRITE_IF_EXISTS_OR_ADD.
_OVERWRITE: Final = 2


class Change(NamedTuple):
    """Of the headers that Envoy has."""

    added: list[tuple[bytes, bytes]]
    """Of several of one name the last counts."""
    removed: list[bytes]


def continue_with(of: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> Any:
    made = ProcessingResponse()
    reply = getattr(made, of)
    reply.SetInParent()
    _add(reply.response.header_mutation, headers)
    return made


def _add(mutation: Any, headers: Iterable[tuple[bytes, bytes]]) -> None:
    for name, value in headers:
        mutation.set_headers.add(header={"key": name, "raw_value": value}, append_action=_OVERWRITE)


def sent_on(of: str, change: Change, endpoint: bytes, *, body: bytes | None = None) -> Any:
    """To an endpoint, `IP:PORT`; `body`: in place of the client's."""
    made = continue_with(of, [*change.added, (DESTINATION, endpoint)])
    common = getattr(made, of).response
    common.header_mutation.remove_headers.extend(change.removed)
    common.clear_route_cache = True
    if body is not None:
        common.body_mutation.body = body
    of_envoy = made.dynamic_metadata.fields.add(key=b"envoy.lb").value.struct_value
    of_envoy.fields.add(key=DESTINATION).value.string_value = endpoint
    return made


def pieces(of: str, body: bytes, *, is_last: bool) -> Sequence[Any]:
    begins = range(0, max(1, len(body)), _PIECE)
    made = [ProcessingResponse() for _ in begins]
    for begin, each in zip(begins, made, strict=True):
        piece = getattr(each, of).response.body_mutation.streamed_response
        piece.body = body[begin : begin + _PIECE]
        piece.end_of_stream = is_last and begin == begins[-1]
    return made


def immediate(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, why: str) -> Any:
    made = ProcessingResponse()
    reply = made.immediate_response
    reply.status.code, reply.body, reply.details = status, body, f"turnpike_{why}"
    _add(reply.headers, headers)
    return made


def following(head: RequestHead, lines: bytes, replica: Replica) -> Change:
    """What makes Envoy's headers those of `lines`: a request line and fields."""
    start, _, rest = lines.partition(b"\r\n")
    had = {(name.lower(), value) for name, value in head.headers}
    wanted = [(name.lower(), value) for name, value in fields(rest)]
    names = {name for name, _ in wanted}
    new = [each for each in wanted if each not in had and each[0] not in _OF_ENVOY]
    if replica.address.prefix:
        new.append((b":path", start.split(b" ")[1]))
    gone = dict.fromkeys(name for name, _ in had if name not in names and name not in _OF_ENVOY)
    return Change(new, list(gone))


def fields(lines: bytes) -> RawHeaders:
    parts = (line.partition(b": ") for line in lines.split(b"\r\n"))
    return [(name, value) for name, colon, value in parts if colon]
