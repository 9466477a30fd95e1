"""Keep-alives before the first event of a streamed response, and error events behind them.

The first keep-alive sends the response's head: status 200 and an event stream. Only events can follow it, so
a later failure becomes the protocol's error event.
"""

from typing import Final

import msgspec

from gateway.domain.request import Protocol
from gateway.wire.body import UNREADABLE
from gateway.wire.engine_json import read_loosely
from gateway.wire.headers import RawHeaders

# Without an empty line: some readers, of Go mostly, take the end of an event without data for a fault.
_COMMENT: Final = b": keep-alive\n"
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_KEEP_ALIVE: Final = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
_MAX_TEXT_BYTES: Final = 2000


def keep_alive(protocol: Protocol, *, is_codex: bool = False) -> bytes:
    """Bytes without a meaning. Codex counts every event, and no comments; helpers of OpenAI's SDK accept no
    event before `response.created`, and skip comments."""
    if protocol is Protocol.MESSAGES:
        return _PING
    return _KEEP_ALIVE if is_codex and protocol is Protocol.RESPONSES else _COMMENT


def is_codex(headers: RawHeaders) -> bool:
    """Its user agent may be named after the program that Codex runs in; these fields are its own."""
    fields = [(name.lower(), value) for name, value in headers]
    return any(
        name in (b"originator", b"thread-id")
        or name.startswith(b"x-codex-")
        or (name == b"user-agent" and b"codex" in value.lower())
        for name, value in fields
    )


def error_event(protocol: Protocol, status: int, body: bytes) -> bytes:
    """The end of a stream that has failed. `body`: that of the response with this status."""
    text = body[:_MAX_TEXT_BYTES].decode("utf-8", "replace") or f"The backend answered with status {status}."
    plain: dict[str, object] = {"message": text, "type": "server_error"}
    try:
        return _event(protocol, status, _error_in(body) or plain)
    except RecursionError:  # it is nested more deeply than can be written with a layer more
        return _event(protocol, status, plain)


def _event(protocol: Protocol, status: int, error: dict[str, object]) -> bytes:
    if protocol is Protocol.MESSAGES:
        data = msgspec.json.encode({"type": "error", "error": error})
        return b"event: error\ndata: %s\n\n" % data
    error.setdefault("code", status)
    if protocol is Protocol.RESPONSES:
        fields = {"code": str(error["code"]), "message": error.get("message"), "param": error.get("param")}
        data = msgspec.json.encode({"type": "error", "sequence_number": 0, **fields, "error": error})
        return b"event: error\ndata: %s\n\n" % data
    return b"data: %s\n\ndata: [DONE]\n\n" % msgspec.json.encode({"error": error})


def _error_in(body: bytes) -> dict[str, object] | None:
    try:
        document = msgspec.json.decode(read_loosely(body)[1])
    except UNREADABLE:
        return None
    if not isinstance(document, dict):
        return None
    error = document.get("error", document)
    return error if isinstance(error, dict) and isinstance(error.get("message"), str) else None
