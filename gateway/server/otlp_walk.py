"""Reads OTLP's protobuf trace requests span by span, so that no request is decoded in one piece (pure).

Decoding holds the interpreter: a few MiB of empty messages would stop the gateway for seconds, on whatever
thread. Here the wire format is walked as far as the spans, each is decoded alone, and everything that costs
time is a step that the caller counts, and after which it may do something else.

Source: protobuf's wire format (https://protobuf.dev/programming-guides/encoding/); OTLP 1.x, `trace.proto`.

Invariants: a step looks at `MAX_SPAN_BYTES` at most; whatever the bytes are, `walk` ends, in at most as many
steps as there are bytes, or raises `Malformed`.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import Span

MAX_SPAN_BYTES: Final = 4096
"""A larger span is decoded without its large fields: those are prompts and results, never ids and names."""
_LARGE_FIELD_BYTES: Final = 1024

_RESOURCE_SPANS: Final = 1
_SCOPE_SPANS: Final = 2
_SPANS: Final = 2
_MAX_VARINT_BYTES: Final = 10

Step = tuple[int, Span | None]
"""How many bytes were decoded, and the span if there was one."""

_NOTHING: Final[Step] = (0, None)


class Malformed(ValueError):  # noqa: N818 - what the body is
    """The bytes are no protobuf message."""


def walk(body: bytes) -> Iterator[Step]:
    """The spans of an ExportTraceServiceRequest. Raises Malformed, perhaps after some of them."""
    for number, _, resource, resource_end in _fields(body, 0, len(body)):
        yield _NOTHING
        if number != _RESOURCE_SPANS:
            continue
        for inner, _, scope, scope_end in _fields(body, resource, resource_end):
            yield _NOTHING
            if inner != _SCOPE_SPANS:
                continue
            for innermost, _, span, span_end in _fields(body, scope, scope_end):
                yield _NOTHING
                if innermost == _SPANS and span_end - span <= MAX_SPAN_BYTES:
                    yield span_end - span, _decode(body[span:span_end])
                elif innermost == _SPANS:
                    yield from _large(body, span, span_end)


def _large(body: bytes, start: int, end: int) -> Iterator[Step]:
    """A span without its large fields; of the others, as many as there is room for, the first ones."""
    kept = bytearray()
    for _, begin, _, field_end in _fields(body, start, end):
        yield _NOTHING
        size = field_end - begin
        if size <= _LARGE_FIELD_BYTES and len(kept) + size <= MAX_SPAN_BYTES:
            kept += body[begin:field_end]
    yield len(kept), _decode(bytes(kept))


def _decode(span: bytes) -> Span:
    try:
        decoded: Span = Span.FromString(span)
    except DecodeError:
        raise Malformed("a span cannot be decoded") from None
    return decoded


def _fields(body: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, beginning, and the payload's beginning and end, of each field; the number is 0 for fields that
    are neither messages nor strings."""
    while at < end:
        begin = at
        tag, at = _varint(body, at, end)
        kind = tag & 7
        if kind == 2:
            length, at = _varint(body, at, end)
            payload, at = at, at + length
            number = tag >> 3
        else:
            number, payload = 0, at
            if kind == 0:
                _, at = _varint(body, at, end)
            elif kind == 1:
                at += 8
            elif kind == 5:
                at += 4
            else:
                raise Malformed(f"a field of the unknown wire type {kind}")
        if at > end:
            raise Malformed("a field is longer than what it is in")
        yield number, begin, payload, at


def _varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    """Its value, and where it ends."""
    value = shift = 0
    for position in range(at, min(end, at + _MAX_VARINT_BYTES)):
        byte = body[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise Malformed("a number does not end")
