"""Tool spans in what agents' exporters send: OTLP's trace requests, in protobuf and in JSON.

Source: OpenTelemetry Protocol 1.x; the conventions for generative AI (`gen_ai.operation.name` is
`execute_tool`) and OpenInference (`openinference.span.kind` is `TOOL`).

Deviations: JSON is read by msgspec, for protobuf's own reading of it takes ids for base64, where OTLP writes
hexadecimal digits, and is slower by far. Of both, only what tells of tools is looked at.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from gateway.domain.ids import MAX_ID_CHARS, is_well_formed_id
from gateway.domain.tool_span import ToolSpan

_KINDS: Final = {"gen_ai.operation.name": "execute_tool", "openinference.span.kind": "TOOL"}
_NAMES: Final = ("gen_ai.tool.name", "tool.name")
_CALLS: Final = ("gen_ai.tool.call.id", "tool_call.id", "tool.id")
_ERROR: Final = "error.type"
_WANTED: Final = frozenset((*_KINDS, *_NAMES, *_CALLS, _ERROR))
_MAX_ATTRIBUTES: Final = 512
"""Of a span; what exporters send is at most a quarter of that, if nobody tells them otherwise."""
MAX_BYTES: Final = 2 << 20
"""Decoding holds the interpreter on any thread: 2 MiB of empty messages for up to 0.1 s."""
MAX_JSON_OBJECTS: Final = 32_768
"""A batch of 512 spans with 20 attributes each has 21,000."""
_PREFIX: Final = "execute_tool "
"""What the conventions have a span's own name begin with."""


class Unreadable(ValueError):  # noqa: N818 - what the body is
    """The body is no trace request."""


class TooLarge(ValueError):  # noqa: N818 - what the body is
    """The body holds more than is read."""


class Found(NamedTuple):
    """A tool span, or why it is none that can be used."""

    span: ToolSpan | None
    fault: str = ""


Step = tuple[int, Found | None]
"""What a step costs, in spans and attributes, and what it found; None if that was no tool's span."""


class Format(NamedTuple):
    content_type: str
    decode: Callable[[bytes], Any]
    """At most `MAX_BYTES`, on any thread. Raises `Unreadable` or `TooLarge`."""
    spans: Callable[[Any], Iterator[Step]]
    """Of what was decoded, step by step."""
    answer: Callable[[int, str], bytes]
    """How many spans were rejected, and why."""
    refusal: Callable[[int, str], bytes]
    """A Status message: a code of gRPC's, and what is wrong."""


def _decode_protobuf(body: bytes) -> ExportTraceServiceRequest:
    try:
        request: ExportTraceServiceRequest = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise Unreadable(f"the body is no ExportTraceServiceRequest: {error}") from error
    return request


def _spans(request: Any, span_of: Callable[[Any], Found | None]) -> Iterator[Step]:
    for resource in request.resource_spans:
        yield 1, None
        for scope in resource.scope_spans:
            yield 1, None
            for span in scope.spans:
                yield 1 + min(_MAX_ATTRIBUTES, len(span.attributes)), span_of(span)


def _of_protobuf(span: Any) -> Found | None:
    if (attributes := _tool_attributes(span)) is None:
        return None
    return _tool_span(
        attributes,
        name=span.name,
        times_ns=(span.start_time_unix_nano, span.end_time_unix_nano),
        ids=(span.trace_id.hex(), span.span_id.hex()),
        has_failed=span.status.code == Status.STATUS_CODE_ERROR,
    )


def _answer_protobuf(rejected: int, why: str) -> bytes:
    if not rejected:
        return b""
    told = ExportTracePartialSuccess(rejected_spans=rejected, error_message=why)
    return bytes(ExportTraceServiceResponse(partial_success=told).SerializeToString())


def _refuse_protobuf(code: int, why: str) -> bytes:
    """`google.rpc.Status` has no definition of its own in OpenTelemetry's; its fields are 1 and 2."""
    text = why.encode()[:127]
    return b"\x08%c\x12%c%s" % (code, len(text), text)


class _Value(msgspec.Struct, frozen=True, rename="camel"):
    string_value: str = ""


class _Pair(msgspec.Struct):
    key: str = ""
    value: _Value = _Value()


class _Status(msgspec.Struct, frozen=True):
    code: int | str = 0


class _Span(msgspec.Struct, rename="camel"):
    trace_id: str = ""
    span_id: str = ""
    name: str = ""
    start_time_unix_nano: int | str = 0
    end_time_unix_nano: int | str = 0
    attributes: list[_Pair] = []
    status: _Status = _Status()


class _Scope(msgspec.Struct):
    spans: list[_Span] = []


class _Resource(msgspec.Struct, rename="camel"):
    scope_spans: list[_Scope] = []


class _Request(msgspec.Struct, rename="camel"):
    resource_spans: list[_Resource] = []


_request: Final = msgspec.json.Decoder(_Request)


def _decode_json(body: bytes) -> _Request:
    if body.count(b"{") > MAX_JSON_OBJECTS:
        raise TooLarge(f"JSON of more than {MAX_JSON_OBJECTS} objects; send protobuf")
    try:
        return _request.decode(body)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the body is no ExportTraceServiceRequest: {error}") from error


def _of_json(span: _Span) -> Found | None:
    if (attributes := _tool_attributes(span)) is None:
        return None
    return _tool_span(
        attributes,
        name=span.name,
        times_ns=(_nanos(span.start_time_unix_nano), _nanos(span.end_time_unix_nano)),
        ids=(span.trace_id.lower(), span.span_id.lower()),
        has_failed=span.status.code in (2, "STATUS_CODE_ERROR"),
    )


def _nanos(value: int | str) -> int:
    """64 bits travel as text in JSON."""
    if isinstance(value, int):
        return value
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 21 else 0


def _answer_json(rejected: int, why: str) -> bytes:
    told = {"partialSuccess": {"rejectedSpans": str(rejected), "errorMessage": why}} if rejected else {}
    return msgspec.json.encode(told)


def _refuse_json(code: int, why: str) -> bytes:
    return msgspec.json.encode({"code": code, "message": why})


def _tool_attributes(span: Any) -> dict[str, str] | None:
    """None if it is no tool's."""
    some = islice(span.attributes, _MAX_ATTRIBUTES)
    attributes = {pair.key: pair.value.string_value for pair in some if pair.key in _WANTED}
    return attributes if any(attributes.get(name) == value for name, value in _KINDS.items()) else None


def _tool_span(
    attributes: Mapping[str, str],
    *,
    name: str,
    times_ns: tuple[int, int],
    ids: tuple[str, str],
    has_failed: bool,
) -> Found:
    start, end = times_ns
    if not 0 < start <= end:
        return Found(None, "a tool span ends before it begins, or does not say when")
    trace, span = ids
    if len(trace) != _TRACE_DIGITS or len(span) != _SPAN_DIGITS:
        return Found(None, "a tool span's ids are not 16 and 8 bytes")
    tool = next((attributes[key] for key in _NAMES if attributes.get(key)), name.removeprefix(_PREFIX))
    call = next((attributes[key] for key in _CALLS if attributes.get(key)), None)
    if not tool or (call is not None and not is_well_formed_id(call)):
        return Found(None, "a tool span without a name, or with an id that is no id of a call")
    return Found(
        ToolSpan(
            name=tool[:MAX_ID_CHARS],
            duration_s=(end - start) / 1e9,
            call=call,
            trace=trace,
            span=span,
            has_failed=has_failed or _ERROR in attributes,
        )
    )


_TRACE_DIGITS: Final = 32
_SPAN_DIGITS: Final = 16

PROTOBUF: Final = Format(
    "application/x-protobuf",
    _decode_protobuf,
    partial(_spans, span_of=_of_protobuf),
    _answer_protobuf,
    _refuse_protobuf,
)
JSON: Final = Format(
    "application/json", _decode_json, partial(_spans, span_of=_of_json), _answer_json, _refuse_json
)
FORMATS: Final = {each.content_type: each for each in (PROTOBUF, JSON)}
