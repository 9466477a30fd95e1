"""Refusals on the wire: every reason has a status and a body in every protocol's shape."""

import itertools

import msgspec
import pytest

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.request import Protocol
from gateway.errors import error_body, http_status


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (RefusalReason.MALFORMED_HTTP, 400),
        (RefusalReason.UNAUTHENTICATED, 401),
        (RefusalReason.FORBIDDEN, 403),
        (RefusalReason.UNKNOWN_MODEL, 404),
        (RefusalReason.STATE_NOT_FOUND, 404),
        (RefusalReason.REQUEST_TIMEOUT, 408),
        (RefusalReason.BODY_TOO_LARGE, 413),
        (RefusalReason.HEADERS_TOO_LARGE, 431),
        (RefusalReason.INTERNAL, 500),
        (RefusalReason.UNSUPPORTED_UPGRADE, 426),
        (RefusalReason.UPSTREAM_UNREACHABLE, 502),
        (RefusalReason.UPSTREAM_BROKEN, 502),
        (RefusalReason.MEMORY_FULL, 503),
        (RefusalReason.QUEUE_FULL, 503),
        (RefusalReason.QUEUE_TIMEOUT, 503),
        (RefusalReason.NO_REPLICA, 503),
        (RefusalReason.DRAINING, 503),
        (RefusalReason.UPSTREAM_TIMEOUT, 504),
    ],
)
def test_status(reason, status):
    assert http_status(reason) == status


def test_every_reason_has_a_body_in_every_protocol():
    for reason, protocol in itertools.product(RefusalReason, Protocol):
        body = msgspec.json.decode(error_body(protocol, Refusal(reason=reason, message="why")))
        assert body["error"]["message"] == "why"
        assert body["error"]["code" if protocol is Protocol.MCP else "type"]


def test_the_shape_that_openai_clients_read():
    refusal = Refusal(reason=RefusalReason.UNKNOWN_MODEL, message="no such model")
    assert msgspec.json.decode(error_body(Protocol.CHAT, refusal)) == {
        "error": {
            "message": "no such model",
            "type": "not_found_error",
            "param": None,
            "code": "unknown_model",
        }
    }


def test_the_shape_that_mcp_clients_read():
    refusal = Refusal(reason=RefusalReason.QUEUE_FULL, message="busy", retry_after_s=3)
    assert msgspec.json.decode(error_body(Protocol.MCP, refusal, request_id="7")) == {
        "jsonrpc": "2.0",
        "id": "7",
        "error": {
            "code": -32000,
            "message": "busy",
            "data": {"reason": "queue_full", "retryAfterSeconds": 3},
        },
    }
    assert msgspec.json.decode(error_body(Protocol.MCP, refusal))["id"] is None


def test_the_shape_that_anthropic_clients_read():
    refusal = Refusal(reason=RefusalReason.QUEUE_FULL, message="busy")
    assert msgspec.json.decode(error_body(Protocol.MESSAGES, refusal)) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "busy"},
    }
