"""Answers to Envoy are written by hand: protobuf's own reader reads in them what was said."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.server.picker import answers
from tests.envoy_messages import ProcessingResponse
from tests.examples import examples

SIZES = (0, 1, 126, 127, 128, 16_383, 16_384, 70_000)
"""Around those where protobuf's sizes take a byte more."""
ANY = st.binary(max_size=9) | st.sampled_from([b"x" * size for size in SIZES])
HEADERS = st.lists(st.tuples(ANY, ANY), max_size=4)
some = settings(max_examples=examples(40))


def read(told: bytes) -> Any:
    return ProcessingResponse.FromString(told)


def set_headers(mutation: Any) -> list[tuple[bytes, bytes]]:
    assert all(each.append_action == 2 for each in mutation.set_headers)
    return [(each.header.key, each.header.raw_value) for each in mutation.set_headers]


@some
@given(headers=HEADERS, gone=st.lists(ANY, max_size=3), body=st.none() | ANY, endpoint=st.text(max_size=9))
def test_where_a_request_goes(headers, gone, body, endpoint):
    mutation = answers.setting(headers) + answers.removing(gone)
    for of, name in ((answers.REQUEST_HEADERS, "request_headers"), (answers.REQUEST_BODY, "request_body")):
        told = read(answers.sent_on(of, mutation, endpoint.encode(), body=body))
        common = getattr(told, name).response
        assert common.clear_route_cache
        assert set_headers(common.header_mutation) == [*headers, (answers.DESTINATION, endpoint.encode())]
        assert list(common.header_mutation.remove_headers) == gone
        assert common.HasField("body_mutation") == (body is not None)
        assert common.body_mutation.body == (body or b"")
        (entry,) = told.dynamic_metadata.fields
        (inner,) = entry.value.struct_value.fields
        assert (entry.key, inner.key) == ("envoy.lb", answers.DESTINATION.decode())
        assert inner.value.string_value == endpoint


@some
@given(headers=HEADERS)
def test_what_goes_on(headers):
    for of, name in enumerate(
        ("request_headers", "response_headers", "request_body", "response_body", "request_trailers"), 1
    ):
        plain = read(answers.go_on(of))
        assert [field.name for field, _ in plain.ListFields()] == [name]
        told = read(answers.go_on(of, answers.setting(headers)))
        assert set_headers(getattr(told, name).response.header_mutation) == headers


@some
@given(status=st.integers(100, 599), headers=HEADERS, body=ANY)
def test_a_refusal(status, headers, body):
    told = read(answers.immediate(status, headers, body, "too_large")).immediate_response
    assert (told.status.code, told.body, told.details) == (status, body, "turnpike_too_large")
    assert set_headers(told.headers) == headers


@some
@given(size=st.integers(0, 200_000), is_last=st.booleans())
def test_a_body_in_pieces(size, is_last):
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    told = [read(each).response_body.response.body_mutation for each in _pieces(body, is_last)]
    assert b"".join(each.streamed_response.body for each in told) == body
    ends = [each.streamed_response.end_of_stream for each in told]
    assert ends == [False] * (len(told) - 1) + [is_last]
    assert all(len(each.streamed_response.body) < 1 << 16 for each in told)


def _pieces(body: bytes, is_last: bool) -> list[bytes]:
    return answers.pieces(answers.RESPONSE_BODY, body, is_last=is_last)


def test_only_what_is_different_is_said():
    head: Any = SimpleNamespace(
        headers=[(b"X-Same", b"1"), (b"x-changed", b"1"), (b"x-gone", b"1"), (b"Host", b"h")]
    )
    replica: Any = SimpleNamespace(address=SimpleNamespace(prefix=b""))
    lines = (
        b"POST /p/v1/x HTTP/1.1\r\nHost: other\r\nx-same: 1\r\nX-Changed: 2\r\nx-new: a: b\r\nConnection: x"
    )
    told = answers.following(head, lines, replica)
    assert told == answers.setting([(b"x-changed", b"2"), (b"x-new", b"a: b")]) + answers.removing(
        [b"x-gone"]
    )
    replica.address.prefix = b"/p"
    assert answers.following(head, lines, replica).count(answers.setting([(b":path", b"/p/v1/x")])) == 1
