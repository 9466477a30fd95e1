"""The answer to a call that the gateway made early, as the client that asks for it gets it.

The server answered the gateway's request id and progress token; the client gets its own instead. The ids of
events are left out: they would lead to a stream that is the gateway's.
"""

from typing import Final

import msgspec
from msgspec import Raw

from gateway.mcp.messages import Kind, RequestId, read_message
from gateway.mcp.sessions import McpSession
from gateway.mcp.tools import CALL_ID_FIELDS, ToolUse
from gateway.wire.body import UNREADABLE
from gateway.wire.sse import EventSplitter, event_data

_PROGRESS: Final = "notifications/progress"
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_PROGRESS_FIELD: Final = "progressToken"
_OF_ONE_CALL: Final = frozenset(
    (
        _PROGRESS_FIELD,
        *CALL_ID_FIELDS,
        *("traceparent", "tracestate", "baggage"),
        *("sessionId", "threadId", "windowId", "itemId", "x-codex-turn-metadata"),  # Codex's
    )
)
"""What a call's `_meta` may say and yet be answered by a call that did not say so."""
_NOT_PASSED: Final = (b"id:", b"data:", b"retry:")


def early_request(request_id: str, tool: str, arguments: bytes, call_id: str, mcp: McpSession) -> bytes:
    """The body of a call; `arguments`: a JSON object; `call_id`: of the model's."""
    params: dict[str, object] = {"name": tool, "arguments": Raw(arguments)}
    meta = {_PROGRESS_FIELD: request_id} if mcp.wants_progress else {}
    if mcp.call_id_field:
        meta[mcp.call_id_field] = call_id
    if meta:
        params["_meta"] = meta
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params})


def cancellation(request_id: str) -> bytes:
    params = {"requestId": request_id, "reason": "The answer that asked for it broke off."}
    return msgspec.json.encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


def with_request_id(cancelled: bytes, request_id: str) -> bytes:
    """A client's cancellation, of the gateway's request instead of its own. Raises one of `UNREADABLE`."""
    message = _FIELDS.decode(cancelled)
    params = _FIELDS.decode(message["params"])
    params["requestId"] = Raw(msgspec.json.encode(request_id))
    message["params"] = Raw(msgspec.json.encode(params))
    return msgspec.json.encode(message)


def progress_token(use: ToolUse) -> tuple[bool, Raw | None]:
    """Whether an early call can answer this one, by its `_meta`; and by which token it wants to be told of
    progress."""
    if not use.meta or use.meta == b"null":
        return True, None
    try:
        meta = _FIELDS.decode(use.meta)
    except UNREADABLE:
        return False, None
    return _OF_ONE_CALL.issuperset(meta), meta.get(_PROGRESS_FIELD)


class EarlyAnswer:
    """Give it what comes with `feed`; it gives back the same for a client, message by message."""

    def __init__(self, request_id: str, content_type: str) -> None:
        """`request_id`: the gateway's own, which is its progress token, too."""
        self._request_id = request_id
        media_type = content_type.partition(";")[0].strip().lower()
        self.is_stream = media_type == "text/event-stream"
        self.is_readable = self.is_stream or media_type == "application/json"
        self._splitter = EventSplitter()
        self._body = bytearray()
        self.held_bytes = 0
        """Of what was given back, and of what is not whole yet."""

    def feed(self, chunk: bytes, *, is_last: bool) -> list[bytes]:
        self.held_bytes += len(chunk)
        if self.is_stream:
            return self._splitter.feed(chunk)
        self._body += chunk
        return [bytes(self._body)] if is_last else []

    @property
    def is_stopped(self) -> bool:
        return self._splitter.is_stopped

    def for_client(self, message: bytes, request_id: RequestId | None, token: Raw | None) -> bytes:
        """As this client gets it; nothing if it is not for it. Raises one of `UNREADABLE`."""
        if not self.is_stream:
            return self._translated(message, request_id, token)
        data = event_data(message)
        if data:
            data = self._translated(data, request_id, token)
            if not data:
                return b""
        lines = [line for line in message.split(b"\n") if line and not line.startswith(_NOT_PASSED)]
        lines += [b"data: " + line for line in data.split(b"\n")] if data else []
        return b"\n".join(lines) + b"\n\n" if lines else b""

    def _translated(self, data: bytes, request_id: RequestId | None, token: Raw | None) -> bytes:
        message = read_message(data)
        if message.kind is Kind.ANSWER and message.id == self._request_id:
            fields = _FIELDS.decode(data)
            fields["id"] = Raw(msgspec.json.encode(request_id))
            return msgspec.json.encode(fields)
        if message.kind is Kind.NOTIFICATION and message.method == _PROGRESS:
            if token is None:
                return b""
            fields = _FIELDS.decode(data)
            params = _FIELDS.decode(message.params)
            params[_PROGRESS_FIELD] = token
            fields["params"] = Raw(msgspec.json.encode(params))
            return msgspec.json.encode(fields)
        return data
