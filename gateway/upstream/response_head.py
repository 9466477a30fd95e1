"""A response's head: what the client gets of it, and the few fields that we look at ourselves."""

from typing import Final

import msgspec

from gateway.wire.headers import RawHeaders, get_header
from gateway.wire.hop_by_hop import end_to_end

EVENT_STREAM: Final = "text/event-stream"


class ResponseHead(msgspec.Struct):
    status: int
    start: bytes
    """The status line and the end-to-end fields as the client gets them, without the empty line."""
    content_type: str
    content_encoding: str | None
    retry_after: str | None
    has_length: bool
    has_framing: bool
    """The headers define the body's end; else it ends with the connection."""
    is_empty: bool
    """No body follows, whatever the headers say (HEAD, 204, 304)."""


def read_head(status: int, reason: bytes, headers: RawHeaders, is_head_request: bool) -> ResponseHead:
    names = [name.lower() for name, _ in headers]
    has_length = b"content-length" in names
    is_empty = is_head_request or status in (204, 304)
    # RFC 9110 §8.6: a 204 has no Content-Length, and who believes one waits for a body that never comes.
    kept = end_to_end(headers, frozenset((b"content-length",)) if status == 204 else frozenset())
    fields = b"".join([b"%s: %s\r\n" % field for field in kept])
    content_type = get_header(headers, b"content-type") or ""
    if content_type.lower().startswith(EVENT_STREAM) and get_header(kept, b"x-accel-buffering") is None:
        fields += b"X-Accel-Buffering: no\r\n"  # else nginx, by default, holds events back
    return ResponseHead(
        status=status,
        start=b"HTTP/1.1 %d %s\r\n%s" % (status, reason, fields),
        content_type=content_type,
        content_encoding=get_header(headers, b"content-encoding"),
        retry_after=get_header(headers, b"retry-after"),
        has_length=has_length,
        has_framing=has_length or is_empty or b"transfer-encoding" in names,
        is_empty=is_empty,
    )
