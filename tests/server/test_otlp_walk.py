"""Trace requests are read span by span, in steps that are counted."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.server.otlp_walk import MAX_SPAN_BYTES, Malformed, walk


def request(*names: str, attributes: int = 1, size: int = 10) -> ExportTraceServiceRequest:
    made = ExportTraceServiceRequest()
    for name in names:
        resource = made.resource_spans.add()
        resource.resource.attributes.add(key="service.name").value.string_value = "agent"
        scope = resource.scope_spans.add()
        scope.scope.name = "lib"
        span = scope.spans.add(name=name, start_time_unix_nano=1, end_time_unix_nano=2, trace_id=b"t" * 16)
        for number in range(attributes):
            span.attributes.add(key=f"k{number}").value.string_value = "x" * size
    return made


def spans(body: bytes) -> list:
    return [span for _, span in walk(body) if span is not None]


def length_delimited(number: int, payload: bytes) -> bytes:
    size, length = b"", len(payload)
    while length > 0x7F:
        size += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + payload


def test_it_finds_what_protobuf_finds():
    made = request("a", "b", "c", attributes=20)
    decoded = [s for r in made.resource_spans for sc in r.scope_spans for s in sc.spans]
    assert spans(made.SerializeToString()) == decoded


def test_a_large_span_is_read_without_its_large_fields():
    made = request("execute_tool bash", attributes=3, size=100_000)
    span = made.resource_spans[0].scope_spans[0].spans[0]
    span.attributes.add(key="gen_ai.tool.call.id").value.string_value = "c1"
    [found] = spans(made.SerializeToString())
    assert (found.name, found.trace_id, found.end_time_unix_nano) == ("execute_tool bash", b"t" * 16, 2)
    assert [(pair.key, pair.value.string_value) for pair in found.attributes] == [
        ("gen_ai.tool.call.id", "c1")
    ]


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_step_is_small_whatever_the_body_is(depth):
    """Many empty messages, at each level."""
    body = b"\x12\x00" * (1 << 16)
    for number in reversed((1, 2, 2)[:depth]):
        body = length_delimited(number, body)
    steps = list(walk(body))
    assert all(size <= MAX_SPAN_BYTES for size, _ in steps)
    assert (1 << 16) <= len(steps) <= len(body)


@pytest.mark.parametrize(
    "body", [b"\xff\xff", b"\x0a\x05", b"\x0b", b"\x0a" + b"\xff" * 11, b"\x09\x00", b"\x0a\x80"]
)
def test_what_is_no_message(body):
    with pytest.raises(Malformed):
        spans(body)


def test_a_span_that_cannot_be_decoded():
    scope = length_delimited(2, length_delimited(2, b"\x0a\xff"))
    with pytest.raises(Malformed):
        spans(length_delimited(1, scope))


@given(st.binary(max_size=300))
def test_it_ends_whatever_the_bytes_are(body):
    with contextlib.suppress(Malformed):
        assert len(list(walk(body))) <= len(body)
