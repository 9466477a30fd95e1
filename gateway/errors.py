"""Refusals on the wire: reason → HTTP status, and → an error body in the protocol's own shape.

A refusal is what the *gateway* answers. What a backend answers, errors included, is passed on as it is.
"""

from typing import assert_never

import msgspec

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.request import Protocol


def http_status(reason: RefusalReason) -> int:
    """429 is for *your* share or quota, 503 for the fleet, 502 and 504 for one backend's failure."""
    R = RefusalReason
    match reason:
        case R.MALFORMED_HTTP:
            return 400
        case R.UNAUTHENTICATED:
            return 401
        case R.FORBIDDEN:
            return 403
        case R.UNKNOWN_MODEL | R.STATE_NOT_FOUND:
            return 404
        case R.REQUEST_TIMEOUT:
            return 408
        case R.BODY_TOO_LARGE:
            return 413
        case R.HEADERS_TOO_LARGE:
            return 431
        case R.INTERNAL:
            return 500
        case R.UNSUPPORTED_UPGRADE:
            return 501
        case R.UPSTREAM_UNREACHABLE | R.UPSTREAM_BROKEN:
            return 502
        case R.UPSTREAM_TIMEOUT:
            return 504
        case R.MEMORY_FULL | R.QUEUE_FULL | R.QUEUE_TIMEOUT | R.NO_REPLICA | R.DRAINING:
            return 503
    assert_never(reason)


_ERROR_TYPES: dict[int, tuple[str, str]] = {
    # status: (OpenAI error type, Anthropic error type)
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("not_found_error", "not_found_error"),
    408: ("timeout_error", "timeout_error"),
    413: ("invalid_request_error", "request_too_large"),
    431: ("invalid_request_error", "invalid_request_error"),
    500: ("server_error", "api_error"),
    501: ("invalid_request_error", "invalid_request_error"),
    502: ("server_error", "api_error"),
    503: ("server_error", "overloaded_error"),
    504: ("timeout_error", "timeout_error"),
}


def error_body(protocol: Protocol, refusal: Refusal) -> bytes:
    """The JSON body an SDK of this protocol turns into its own exception."""
    status = http_status(refusal.reason)
    openai_type, anthropic_type = _ERROR_TYPES[status]
    body: dict[str, object]
    if protocol is Protocol.MESSAGES:
        body = {"type": "error", "error": {"type": anthropic_type, "message": refusal.message}}
    else:
        body = {
            "error": {
                "message": refusal.message,
                "type": openai_type,
                "param": None,
                "code": refusal.reason.value,
            }
        }
    return msgspec.json.encode(body)
