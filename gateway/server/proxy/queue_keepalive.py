"""Clients whose streamed answer has not begun: after a while they are sent keep-alives.

Nothing is sent before `first_keepalive_s`, so that whoever waits no longer than that gets the backend's own
head, or an error status. Nothing at all is sent to a client that did not ask for an event stream, or that
does not read. How long 22 clients wait in silence, and what keeps them from giving up, was observed.
"""

import asyncio
import contextlib
from typing import Final

import msgspec

from gateway.config.server import ServerConfig
from gateway.domain.decision import Refusal
from gateway.errors import error_body, http_status
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.request_head import RequestHead
from gateway.server.http.response_writer import Framing
from gateway.server.proxy.byte_pump import Write
from gateway.server.proxy.ticket import Ticket
from gateway.upstream.response_head import EVENT_STREAM, ResponseHead
from gateway.wire.inflate import INFLATABLE, Inflater, InflationError
from gateway.wire.sse_keepalive import error_event, is_codex, keep_alive

_MAX_ERROR_BYTES: Final = 1 << 16
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    b"X-Accel-Buffering: no\r\n"
)


class QueueKeepAlive:
    """A request that waits. `end` must be called."""

    def __init__(
        self, client: ClientConnection, ticket: Ticket, head: RequestHead, server: ServerConfig
    ) -> None:
        self._client = client
        self._receipt = (
            b"x-turnpike-request: %s\r\n" % ticket.request.encode() if server.has_receipts else b""
        )
        self._protocol = ticket.facts.protocol
        self._is_http_1_0 = head.is_http_1_0
        self._keepalive = keep_alive(self._protocol, is_codex=is_codex(head.headers))
        self._loop = asyncio.get_running_loop()
        self._period_s = server.holding.period_s
        self.has_begun = False
        self._timer = self._loop.call_later(server.holding.first_keepalive_s, self._send_keepalive)

    def end(self) -> None:
        self._timer.cancel()

    def fail(self, status: int, body: bytes) -> None:
        self._client.write([error_event(self._protocol, status, body)], is_last=True)

    def writer(self, head: ResponseHead) -> Write:
        """Where to write the body: events go on behind the keep-alives, without a content coding, since the
        head that is out names none; anything else ends the stream as one event, cut to a bound."""
        coding = (head.content_encoding or "identity").strip().lower()
        if head.status != 200 or not head.content_type.lower().startswith(EVENT_STREAM):
            return self._as_last_event(head.status, coding)
        if coding == "identity":
            return self._client.write
        return self._inflating(coding) if coding in INFLATABLE else self._as_last_event(502, coding)

    def _inflating(self, coding: str) -> Write:
        client, inflater = self._client, Inflater(coding)

        def write(parts: list[bytes], is_last: bool) -> None:
            try:
                plain = [piece for part in parts for piece in inflater.feed(part)]
            except InflationError:
                client.abort()
                return
            if is_last and not inflater.is_complete:
                client.abort()
            else:
                client.write(plain, is_last)

        return write

    def _as_last_event(self, status: int, coding: str) -> Write:
        body = bytearray()

        def write(parts: list[bytes], is_last: bool) -> None:
            for part in parts:
                body.extend(part[: _MAX_ERROR_BYTES - len(body)])
            if is_last:
                self.fail(status, bytes(body) if coding == "identity" else _plain(bytes(body), coding))

        return write

    def refuse(self, refusal: Refusal) -> None:
        self.fail(http_status(refusal.reason), error_body(self._protocol, refusal))

    def _send_keepalive(self) -> None:
        if not self.has_begun:
            self.has_begun = True
            head = _HEAD + self._receipt + self._client.own_lines()
            self._client.start_response(head, Framing.CLOSE if self._is_http_1_0 else Framing.CHUNKED)
        if not self._client.is_paused:
            self._client.write([self._keepalive])
        self._timer = self._loop.call_later(self._period_s, self._send_keepalive)


def _plain(body: bytes, coding: str) -> bytes:
    plain = b""
    if coding in INFLATABLE:
        with contextlib.suppress(InflationError):
            for piece in Inflater(coding, _MAX_ERROR_BYTES).feed(body):
                plain += piece
    message = f"The backend's answer has the content coding {coding[:40]}, which the gateway could not read."
    return plain or msgspec.json.encode({"error": {"message": message, "type": "server_error"}})
