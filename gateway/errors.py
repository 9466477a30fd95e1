"""Refusals on the wire: reason → HTTP status, and → an error body in the protocol's own shape.

A refusal is what the *gateway* answers. What a backend answers, errors included, is passed on as it is.
"""

from typing import Final, assert_never

import msgspec

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.request import Protocol


def http_status(reason: RefusalReason) -> int:
    """429 is for *your* share or quota, 503 for the fleet, 502 and 504 for one backend's failure.

    A bound that is reached is 403: to wait does not help, and SDKs repeat 429 and 409. Some agents take a 400
    for a prompt that is too long, and try with less."""
    match reason:
        case RefusalReason.MALFORMED_HTTP | RefusalReason.KV_FIELD:
            return 400
        case RefusalReason.UNAUTHENTICATED:
            return 401
        case RefusalReason.FORBIDDEN | RefusalReason.BOUND_REACHED | RefusalReason.SESSION_STOPPED:
            return 403
        case RefusalReason.UNKNOWN_MODEL | RefusalReason.UNKNOWN_PATH | RefusalReason.STATE_NOT_FOUND:
            return 404
        case RefusalReason.REQUEST_TIMEOUT:
            return 408
        case RefusalReason.BODY_TOO_LARGE:
            return 413
        case RefusalReason.UNSUPPORTED_CODING:
            return 415
        case RefusalReason.TENANT_SHARE | RefusalReason.TENANT_QUOTA:
            return 429
        case RefusalReason.UNSUPPORTED_UPGRADE:
            return 426
        case RefusalReason.HEADERS_TOO_LARGE:
            return 431
        case RefusalReason.INTERNAL:
            return 500
        case (
            RefusalReason.UPSTREAM_UNREACHABLE
            | RefusalReason.UPSTREAM_BROKEN
            | RefusalReason.UPSTREAM_BROKEN_TWICE
        ):
            return 502
        case RefusalReason.UPSTREAM_TIMEOUT:
            return 504
        case (
            RefusalReason.MEMORY_FULL
            | RefusalReason.QUEUE_FULL
            | RefusalReason.QUEUE_TIMEOUT
            | RefusalReason.NO_REPLICA
            | RefusalReason.LOCAL_FAULT
            | RefusalReason.DRAINING
        ):
            return 503
    assert_never(reason)


def is_final(reason: RefusalReason) -> bool:
    return reason in _FINAL


_FINAL: Final = frozenset(
    (RefusalReason.BOUND_REACHED, RefusalReason.SESSION_STOPPED, RefusalReason.UPSTREAM_BROKEN_TWICE)
)


_ERROR_TYPES: dict[int, tuple[str, str]] = {
    # status: (OpenAI error type, Anthropic error type)
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("not_found_error", "not_found_error"),
    408: ("timeout_error", "timeout_error"),
    413: ("invalid_request_error", "request_too_large"),
    415: ("invalid_request_error", "invalid_request_error"),
    426: ("invalid_request_error", "invalid_request_error"),
    429: ("rate_limit_error", "rate_limit_error"),
    431: ("invalid_request_error", "invalid_request_error"),
    500: ("server_error", "api_error"),
    502: ("server_error", "api_error"),
    503: ("server_error", "overloaded_error"),
    504: ("timeout_error", "timeout_error"),
}


def error_body(protocol: Protocol, refusal: Refusal, *, request_id: str | int | None = None) -> bytes:
    """The JSON body an SDK of this protocol turns into its own exception; `request_id`: of JSON-RPC."""
    status = http_status(refusal.reason)
    if protocol is Protocol.MCP:
        return msgspec.json.encode(_json_rpc_error(refusal, request_id))
    if refusal.reason is RefusalReason.STATE_NOT_FOUND:
        return msgspec.json.encode({"error": _vllm_not_found(refusal)})
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


# The first of those that JSON-RPC leaves to servers.
_JSON_RPC_SERVER_ERROR: Final = -32000


def _json_rpc_error(refusal: Refusal, request_id: str | int | None) -> dict[str, object]:
    data: dict[str, object] = {"reason": refusal.reason.value}
    if refusal.retry_after_s is not None:
        data["retryAfterSeconds"] = refusal.retry_after_s
    error = {"code": _JSON_RPC_SERVER_ERROR, "message": refusal.message, "data": data}
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def _vllm_not_found(refusal: Refusal) -> dict[str, object]:
    """vLLM's own words, so that nobody can tell a response of another tenant's from none at all."""
    return {
        "message": refusal.message,
        "type": "invalid_request_error",
        "param": "response_id",
        "code": http_status(refusal.reason),
    }
