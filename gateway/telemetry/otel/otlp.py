"""Spans as OTLP writes them: the protobuf encoding of `ExportTraceServiceRequest` (pure).

By hand, because it is a dozen fields and takes a fiftieth of the time: OpenTelemetry's SDK and exporter need
160 µs of a core for a span, more than the gateway needs for a whole turn, and hold the interpreter meanwhile.

Field numbers as in opentelemetry-proto 1.x (`trace/v1/trace.proto`, `common/v1/common.proto`).
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from gateway.telemetry.otel.contents import Content

Value = str | int | float | bool | tuple[str, ...]
# None: unknown, and left out.
Attributes = Sequence[tuple[str, Value | None]]

INTERNAL: Final = 1
SERVER: Final = 2
CLIENT: Final = 3


class Span(msgspec.Struct, frozen=True, gc=False):
    trace_id: bytes
    span_id: bytes
    parent: bytes
    name: str
    kind: int
    start_s: float
    end_s: float
    attributes: Attributes = ()
    links: Sequence[tuple[bytes, bytes]] = ()
    """Traces and spans."""
    error: str = ""
    content: Content | None = None
    """The contents of its request and answer, written later: `encode_span` leaves them out."""


def encode_request(spans: Iterable[bytes], resource: Attributes, *, version: str) -> bytes:
    items = b"".join([block(2, span) for span in spans])
    scope = block(1, text(1, "turnpike") + text(2, version))
    return block(1, block(1, attributes_field(1, resource)) + block(2, scope + items))


def encode_span(span: Span) -> bytes:
    parts = [b"\x0a\x10", span.trace_id, b"\x12\x08", span.span_id]
    if span.parent:
        parts += (b"\x22\x08", span.parent)
    parts += (
        _known_text(5, span.name),
        b"\x30%c" % span.kind,
        _TIMES.pack(0x39, int(span.start_s * 1e9), 0x41, int(span.end_s * 1e9)),
        attributes_field(9, span.attributes),
    )
    for trace_id, span_id in span.links:
        parts.append(block(13, b"\x0a\x10" + trace_id + b"\x12\x08" + span_id))
    if span.error:
        parts.append(block(15, text(2, span.error) + b"\x18\x02"))
    return b"".join(parts)


_TIMES: Final = struct.Struct("<BQBQ")
_DOUBLE: Final = struct.Struct("<Bd")


def attributes_field(field: int, attributes: Attributes) -> bytes:
    return b"".join([_attribute(field, key, value) for key, value in attributes if value is not None])


@lru_cache(maxsize=4096, typed=True)
def _attribute(field: int, key: str, value: Value) -> bytes:
    return block(field, _known_text(1, key) + block(2, _value(value)))


def text_attribute(field: int, key: str, encoded: bytes) -> bytes:
    """Of a text that is encoded, and of which nothing may be remembered here."""
    return block(field, _known_text(1, key) + block(2, block(1, encoded)))


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return text(1, value)
    if isinstance(value, bool):
        return b"\x10%c" % value
    if isinstance(value, int):
        return b"\x18" + _varint(value)
    if isinstance(value, float):
        return _DOUBLE.pack(0x21, value)
    return block(5, b"".join([block(1, text(1, each)) for each in value]))


def text(field: int, encoded: str) -> bytes:
    return block(field, encoded.encode(errors="replace"))


# Of which there are few: names.
_known_text: Final = lru_cache(maxsize=1024)(text)


def block(field: int, content: bytes) -> bytes:
    size = len(content)
    if field < 16 and size < 128:
        return b"%c%c%s" % (field << 3 | 2, size, content)
    return _varint(field << 3 | 2) + _varint(size) + content


def _varint(number: int) -> bytes:
    if 0 <= number < 128:
        return b"%c" % number
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
