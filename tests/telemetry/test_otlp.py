"""The encoding: OpenTelemetry's own decoder reads what was meant."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from gateway.telemetry import otlp
from gateway.telemetry.otlp import (
    CLIENT,
    INTERNAL,
    SERVER,
    Span,
    encode_request,
    encode_span,
    text_attribute,
)
from tests.telemetry.otlp_receiver import attributes

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
VALUES = (
    TEXT | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans()
    | st.lists(TEXT, max_size=4).map(tuple)
)  # fmt: skip
SPANS = st.builds(
    Span,
    trace_id=st.binary(min_size=16, max_size=16),
    span_id=st.binary(min_size=8, max_size=8),
    parent=st.just(b"") | st.binary(min_size=8, max_size=8),
    name=TEXT,
    kind=st.sampled_from((INTERNAL, SERVER, CLIENT)),
    start_s=st.floats(0, 4e9),
    end_s=st.floats(0, 4e9),
    attributes=st.dictionaries(TEXT, VALUES, max_size=6).map(lambda each: tuple(each.items())),
    links=st.lists(
        st.tuples(st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8)), max_size=3
    ),
    error=TEXT,
)


@given(SPANS)
def test_a_span_is_read_as_it_was_meant(span):
    read = trace_pb2.Span.FromString(encode_span(span))
    assert (read.trace_id, read.span_id, read.parent_span_id) == (span.trace_id, span.span_id, span.parent)
    assert (read.name, read.kind) == (span.name, span.kind)
    assert read.start_time_unix_nano == int(span.start_s * 1e9)
    assert read.end_time_unix_nano == int(span.end_s * 1e9)
    assert attributes(read) == dict(span.attributes)
    assert [(link.trace_id, link.span_id) for link in read.links] == span.links
    assert (read.status.code, read.status.message) == ((2, span.error) if span.error else (0, ""))
    assert not read.HasField("status") or span.error


def test_what_is_not_known_is_not_said():
    span = Span(b"t" * 16, b"s" * 8, b"", "x", INTERNAL, 1.0, 2.0, (("a", None), ("b", 0), ("c", "")))
    assert attributes(trace_pb2.Span.FromString(encode_span(span))) == {"b": 0, "c": ""}


def test_what_turns_say_is_not_remembered():
    otlp._attribute.cache_clear()
    said = text_attribute(9, "gen_ai.input.messages", '[{"role":"größer"}]'.encode())
    assert attributes(trace_pb2.Span.FromString(said)) == {"gen_ai.input.messages": '[{"role":"größer"}]'}
    assert not otlp._attribute.cache_info().currsize


def test_a_name_that_is_no_unicode_harms_nobody():
    span = Span(b"t" * 16, b"s" * 8, b"", "\ud800", INTERNAL, 1.0, 2.0)
    assert trace_pb2.Span.FromString(encode_span(span)).name == "?"


@given(st.lists(SPANS, max_size=5))
def test_a_request_holds_them_all(spans):
    body = encode_request(map(encode_span, spans), (("service.name", "turnpike"),), version="1")
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    [scope] = resource.scope_spans
    assert (scope.scope.name, scope.scope.version) == ("turnpike", "1")
    assert [span.span_id for span in scope.spans] == [span.span_id for span in spans]
    assert attributes(resource.resource) == {"service.name": "turnpike"}
