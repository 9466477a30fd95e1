"""What a server answers, looked at as it passes: JSON-RPC messages, out of a JSON body or out of events.

Never raises, and keeps at most one message. What is compressed or too large is not read.
"""

from typing import Final

from gateway.mcp.messages import MAX_READ_BYTES, UNREAD, Message, read_message
from gateway.wire.sse import EventSplitter, event_data

_ID: Final = b"id:"


class AnswerWatch:
    """Give it every read with `feed`."""

    def __init__(self, content_type: str, content_encoding: str | None) -> None:
        media_type = content_type.partition(";")[0].strip().lower()
        is_plain = content_encoding is None or content_encoding.strip().lower() == "identity"
        self._events = EventSplitter() if is_plain and media_type == "text/event-stream" else None
        self._body: bytearray | None = bytearray() if is_plain and media_type == "application/json" else None
        # The server numbers its events: the client may come back for those that it missed.
        self.may_resume = False

    @property
    def is_blind(self) -> bool:
        return self._body is None and (self._events is None or self._events.is_stopped)

    def feed(self, chunk: bytes, *, is_last: bool) -> list[Message]:
        if self._events is not None:
            blocks = self._events.feed(chunk)
            return [message for block in blocks if (message := self._read(block)) is not None]
        if self._body is None:
            return []
        self._body += chunk
        if len(self._body) > MAX_READ_BYTES:
            self._body = None
            return []
        return [read_message(bytes(self._body))] if is_last else []

    def _read(self, block: bytes) -> Message | None:
        if not self.may_resume and (block.startswith(_ID) or b"\n" + _ID in block):
            self.may_resume = True
        data = event_data(block)
        message = read_message(data) if data else UNREAD
        return message if message is not UNREAD else None
