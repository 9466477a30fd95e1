"""What Responses over WebSocket say."""

import json

import pytest

from gateway.domain.decision import Refusal, RefusalReason
from gateway.wire.response_frames import Asked, error_event, read_asked, status_of, stream_of


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        (b'{"type":"response.create","model":"m"}', Asked(True, None)),
        (b'{"ty\\u0070e":"response.cr\\u0065ate","stream_id":"a"}', Asked(True, "a")),
        (b'{"type":"x","type":"response.create"}', Asked(True, None)),  # as backends read it
        (b'{"type":"response.create","type":"x"}', Asked(False, None)),
        (b'{"type":"response.created","stream_id":7}', Asked(False, None)),
        (b'{"type":"response.create","stream_id":"a b"}', Asked(True, None)),
        (b'{"type":"response.create","stream_id":""}', Asked(True, None)),
        (b'{"type":7}', Asked(False, None)),
        (b"{}", Asked(False, None)),
        (b"[]", None),
        (b"{", None),
        (b'"response.create"', None),
        (b"\xff\xfe{\x00", None),
        (b"[" * 100_000, None),
        (b"", None),
    ],
)
def test_what_a_message_is(data, asked):
    assert read_asked(data) == asked


def test_whose_an_event_is():
    assert stream_of(b'{"type":"x","stream_id":"a"}') == "a"
    assert stream_of(b'{"type":"x","delta":"\\"stream_id\\": \\"a\\""}') is None
    assert stream_of(b'{"type":"x","item":{"stream_id":"a"}}') is None
    assert stream_of(b'{"stream_id":') is None


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (b'{"type":"error","status":429}', 429),
        (b'{"type":"error"}', 500),
        (b'{"type":"error","status":"429"}', 500),
        (b'{"type":"error","status":200}', 500),
        (b'{"type":"error","status":1e99}', 500),
        (b"{", 500),
    ],
)
def test_which_status_an_error_stands_for(event, status):
    assert status_of(event) == status


def test_a_refusal_is_an_error_as_codex_reads_it():
    refusal = Refusal(reason=RefusalReason.TENANT_QUOTA, message="Too much.", retry_after_s=7)
    assert json.loads(error_event(refusal, "a")) == {
        "type": "error",
        "status": 429,
        "stream_id": "a",
        "error": {"message": "Too much.", "type": "rate_limit_error", "param": None, "code": "tenant_quota"},
        "headers": {"retry-after": "7"},
    }
    unknown = Refusal(reason=RefusalReason.STATE_NOT_FOUND, message="Response with id 'r' not found.")
    told = json.loads(error_event(unknown, None))
    assert told["status"] == 400 and told["error"]["code"] == "previous_response_not_found"
    assert "stream_id" not in told and "headers" not in told
