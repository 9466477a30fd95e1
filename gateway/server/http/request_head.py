"""A request's head: what was read of it, and whether two parsers could read it in two ways."""

import re
from typing import Final

import msgspec

from gateway.config.http_limits import HttpLimits
from gateway.domain.decision import RefusalReason
from gateway.requests.facts import HeaderFacts
from gateway.server.auth.authenticator import Caller
from gateway.server.http.body_limits import too_large
from gateway.server.http.refused_request import RefusedRequest, malformed, refused
from gateway.upstream.replica import Replica
from gateway.wire.handshake import is_handshake
from gateway.wire.headers import RawHeaders


class RequestHead(msgspec.Struct, kw_only=True, eq=False):
    """Requests of one address that begin alike share it, and with it what was made of it."""

    method: str
    target: bytes
    """Path and query as received."""
    headers: RawHeaders
    """As received; but the Content-Length, if any, is that of the first request that began so."""
    is_http_1_0: bool
    keep_alive: bool
    caller: Caller
    facts: HeaderFacts
    is_websocket: bool = False
    """It is a valid WebSocket handshake."""
    passed_on: dict[Replica, bytes] = {}
    """What `outbound` made of it for each replica. Not by its name: another replica may have that later."""


def check_head(
    method: bytes, target: bytes, headers: RawHeaders, version: str, limits: HttpLimits
) -> int | None:
    """How long the body is; None if it comes in chunks.

    Raises `RefusedRequest` for a head that two parsers could read in two ways, or that exceeds a limit.
    """
    hosts = lengths = codings = length = 0
    is_websocket = False
    for name, value in headers:
        match name.lower():
            case b"host":
                hosts += 1
            case b"content-length":
                lengths += 1
                if not value.isdigit():
                    raise malformed("Content-Length is not a number")
                if len(value) > 18 or (length := int(value)) > limits.max_body_bytes:
                    raise too_large(limits)
            case b"transfer-encoding":
                codings += 1
                if value.lower() != b"chunked":
                    raise malformed("the only transfer coding is chunked")
            case b"upgrade" if value.lower() == b"websocket":
                is_websocket = True
    if version not in ("1.0", "1.1"):
        raise malformed("only HTTP/1.0 and HTTP/1.1 are supported")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise malformed("exactly one Host is required")
    if lengths > 1 or codings > 1 or (lengths and codings) or (codings and version == "1.0"):
        raise malformed("the length of the body is ambiguous")
    if method == b"CONNECT" or not (target.startswith(b"/") or (method == b"OPTIONS" and target == b"*")):
        raise malformed("the request target must be a path")
    if is_websocket and (length or codings or not is_handshake(method, headers, version)):
        message = "The opening handshake of the WebSocket is not that of RFC 6455, version 13."
        raise refused(RefusalReason.UNSUPPORTED_UPGRADE, message)
    return None if codings else length


def path_of(target: bytes, method: bytes) -> bytes:
    """Of an absolute target (RFC 9112 §3.2.2), the part behind the server: clients do not choose the server,
    there as little as by `Host`. Any other target stays."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        return target
    if not found[1] and method == b"OPTIONS":
        return b"*"
    return found[1] if found[1].startswith(b"/") else b"/" + found[1]


_ABSOLUTE: Final = re.compile(rb"https?://[A-Za-z0-9._~:%\[\]-]+(|[/?].*)", re.IGNORECASE | re.DOTALL)


def headers_too_large(limits: HttpLimits) -> RefusedRequest:
    return refused(
        RefusalReason.HEADERS_TOO_LARGE, f"The request's headers exceed {limits.max_header_bytes} bytes."
    )
