"""One text field of a multipart form, such as the model of an audio request (RFC 7578)."""

import re
from contextlib import suppress

_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))', re.IGNORECASE)
_MAX_HEAD_BYTES = 4096
_MAX_FIELD_BYTES = 1024
_MAX_PARTS = 64


def read_form_field(content_type: str, body: bytes, name: str) -> str | None:
    span = find_form_field(content_type, body, name)
    if span is not None and span[1] - span[0] <= _MAX_FIELD_BYTES:
        with suppress(UnicodeDecodeError):
            return body[slice(*span)].decode().strip()
    return None


def find_form_field(content_type: str, body: bytes, name: str) -> tuple[int, int] | None:
    match = _BOUNDARY.search(content_type)
    if match is None:
        return None
    delimiter = b"--" + (match[1] or match[2]).encode("latin-1")
    wanted = re.compile(rb'\bname="?' + re.escape(name.encode("ascii")) + rb'(?:"|;|\s|$)', re.IGNORECASE)
    at = body.find(delimiter)
    for _ in range(_MAX_PARTS):
        if at < 0:
            break
        at += len(delimiter)
        head_end = body.find(b"\r\n\r\n", at, at + _MAX_HEAD_BYTES)
        following = body.find(delimiter, at)
        if 0 <= head_end < following and wanted.search(body[at:head_end]) is not None:
            return head_end + 4, following
        at = following
    return None


def form_parts(content_type: str, body: bytes) -> list[bytes]:
    """What stands between its boundaries, of which a client makes another each time that it sends it."""
    match = _BOUNDARY.search(content_type)
    delimiter = (match[1] or match[2]).encode("latin-1") if match is not None else b""
    return body.split(delimiter, _MAX_PARTS) if delimiter else [body]
