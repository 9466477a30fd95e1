"""What is said in Responses over WebSocket: which message asks for a response, and whose an event is.

A client's `response.create` is the body of `POST /v1/responses` with a `type`; what comes back are the events
of a stream, one in each message. `stream_id` parts conversations that share a connection: in each, responses
come one after the other, in the order in which they were asked for. Without it there is one more.
Source: OpenAI, "WebSocket mode" (guide), November 2026.
"""

import re
from collections.abc import Generator
from typing import Final

import msgspec
from msgspec import Raw

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.request import Protocol
from gateway.errors import error_body, http_status
from gateway.wire.body import ABSENT, measuring, read_as, read_text

KEEP_ALIVE: Final = b'{"type":"keepalive"}'
"""An event that means nothing, for Codex, which counts events alone."""


_NOT_FOUND: Final = {
    "type": "invalid_request_error",
    "code": "previous_response_not_found",
    "param": "previous_response_id",
}
_NOT_FOUND_STATUS: Final = 400
_STREAM: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class Asked(msgspec.Struct, frozen=True):
    """What a client's message is."""

    is_create: bool
    stream: str | None
    """None: the one without a name."""


class _Message(msgspec.Struct):
    type: Raw = ABSENT
    stream_id: Raw = ABSENT
    status: Raw = ABSENT


class _Error(msgspec.Struct):
    error: Raw


_MESSAGE: Final = msgspec.json.Decoder(_Message)
_ERROR: Final = msgspec.json.Decoder(_Error)
_STATUS: Final = msgspec.json.Decoder(int)


def read_asked(data: bytes) -> Asked | None:
    """None if it is no JSON object, or too deep to be read."""
    message = read_as(_MESSAGE, data)
    if message is None:
        return None
    return Asked(read_text(message.type) == "response.create", _stream(message))


def reading_asked(data: bytes) -> Generator[None, None, Asked | None]:
    """The same in slices. Raises Oversized if it would take too long."""
    yield from measuring(data)
    return read_asked(data)


def _stream(message: _Message) -> str | None:
    """A name that may be none is told of without."""
    name = read_text(message.stream_id)
    return name if name is not None and _STREAM.fullmatch(name) else None


def stream_of(event: bytes) -> str | None:
    """Which stream an event belongs to."""
    if b'"stream_id"' not in event:
        return None
    message = read_as(_MESSAGE, event)
    return _stream(message) if message is not None else None


def status_of(error: bytes) -> int:
    """The HTTP status that an `error` event stands for; 500 if it does not say."""
    message = read_as(_MESSAGE, error)
    status = read_as(_STATUS, message.status) if message is not None else None
    return status if status is not None and 400 <= status < 600 else 500


def error_event(refusal: Refusal, stream: str | None, lines: bytes = b"") -> bytes:
    """Why one response is not to be had, as clients read it: Codex takes `status` and `headers` for those of
    an HTTP answer. `lines`: headers more, as there."""
    is_state = refusal.reason is RefusalReason.STATE_NOT_FOUND
    status = _NOT_FOUND_STATUS if is_state else http_status(refusal.reason)
    told: dict[str, object] = {"type": "error", "status": status}
    if stream is not None:
        told["stream_id"] = stream
    if is_state:  # as OpenAI says it: clients then send the whole conversation
        told["error"] = {**_NOT_FOUND, "message": refusal.message}
    else:
        told["error"] = _ERROR.decode(error_body(Protocol.RESPONSES, refusal)).error
    headers = dict(line.split(": ", 1) for line in lines.decode("ascii").splitlines())
    if refusal.retry_after_s is not None:
        headers["retry-after"] = str(refusal.retry_after_s)
    if headers:
        told["headers"] = headers
    return msgspec.json.encode(told)
