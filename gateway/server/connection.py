"""One client connection: bytes in become requests for the handler, its answer goes out as bytes.

A connection runs one task, which takes one request after the other. If the client leaves, the task is
cancelled; that is how a handler learns of it. Writing never waits: a relay that writes more than the
client reads is told by `on_pause` and `on_resume`, and stops reading from its backend.
"""

import asyncio
import contextlib
import enum
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.request import Protocol
from gateway.errors import error_body, http_status
from gateway.server.door import Visitor
from gateway.server.request_parser import HttpRequest, RequestParser
from gateway.wire.endpoints import classify
from gateway.wire.headers import RawHeaders

if TYPE_CHECKING:
    from gateway.server.listener import Listener

Handler = Callable[["ClientConnection", HttpRequest], Awaitable[None]]


class Framing(enum.Enum):
    """How the end of a response's body is told."""

    NONE = "none"
    """No body at all (HEAD, 204, 304)."""
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"
    """HTTP/1.0 without a length: the connection closes."""


_REASONS: Final = {
    400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found",
    408: b"Request Timeout", 413: b"Content Too Large", 431: b"Request Header Fields Too Large",
    500: b"Internal Server Error", 501: b"Not Implemented", 502: b"Bad Gateway",
    503: b"Service Unavailable", 504: b"Gateway Timeout",
}  # fmt: skip


_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing drops what is unsent and resets the connection."""


def _nothing() -> None:
    pass


class ClientConnection(asyncio.Protocol):
    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._limits = listener.limits
        self._parser = RequestParser(listener.limits, listener.budget, self._judge)
        self._arrival: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._current: HttpRequest | None = None
        self._framing: Framing | None = None
        """Of the response that is being sent; None between responses."""
        self._held_head = b""
        """The head of that response, while it has not been sent."""
        self._is_discarding = False
        self._is_lost = False
        self._must_close = False
        now = listener.now()
        self._idle_since = self._last_read = self._first_byte = now
        self._paused_since: float | None = None
        self._closing_since: float | None = None
        self.peer = ""
        """The client's address, without the port."""
        self.transport: asyncio.Transport
        self.on_pause: Callable[[], None] = _nothing
        self.on_resume: Callable[[], None] = _nothing

    # --- from the transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        peername = transport.get_extra_info("peername")
        self.peer = peername[0] if isinstance(peername, tuple) else "local"
        if not self._listener.connected(self):
            refusal = Refusal(
                reason=RefusalReason.MEMORY_FULL,
                message="The gateway has as many connections as it may.",
                retry_after_s=5,
            )
            self._task = self._listener.spawn(self._refuse_and_linger(refusal))
            return
        self._task = self._listener.spawn(self._serve())

    def data_received(self, data: bytes) -> None:
        if self._is_discarding:
            return
        now = self._last_read = self._listener.now()
        if not self._parser.is_mid_request:
            self._first_byte = now
        self._parser.feed(data)
        self._continue_if_wanted()
        if self._parser.requests or self._parser.refusal is not None:
            if self._current is not None:
                self.transport.pause_reading()  # a pipelined request waits for its turn
            if self._arrival is not None and not self._arrival.done():
                self._arrival.set_result(None)

    def _judge(self, method: str, target: bytes, headers: RawHeaders) -> Visitor | Refusal:
        return self._listener.door.judge(method, target, headers, self.peer)

    def eof_received(self) -> bool:
        """A half-closed client is treated as gone; it gets what is ready, but no half of a response."""
        if self._current is not None:
            self.abort()
        else:
            self._close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._listener.disconnected(self)
        self._parser.discard()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._paused_since = self._listener.now()
        self.on_pause()

    def resume_writing(self) -> None:
        self._paused_since = None
        self.on_resume()

    # --- the handler's side ----------------------------------------------------------------------

    @property
    def is_answering(self) -> bool:
        """A response head was sent and its body is not complete."""
        return self._framing is not None

    @property
    def is_idle(self) -> bool:
        return self._current is None and not self._parser.is_mid_request

    def start_response(self, status_line: bytes, headers: RawHeaders, framing: Framing) -> None:
        """Sends the head, with the first of the body or at the latest by `flush_head`: one write, not two.

        `headers` holds end-to-end fields only, Content-Length included.
        """
        assert self._framing is None and self._current is not None
        lines = [status_line, b"\r\n"]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        if framing is Framing.CHUNKED:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        if framing is Framing.CLOSE or not self._current.keep_alive or self._listener.is_draining:
            self._must_close = True
            lines.append(b"Connection: close\r\n")
        elif self._current.is_http_1_0:
            lines.append(b"Connection: keep-alive\r\n")
        lines.append(b"\r\n")
        self._framing = framing
        self._held_head = b"".join(lines)

    def flush_head(self) -> None:
        """Sends the head now, if no body has come to go with it."""
        head, self._held_head = self._held_head, b""
        if head and not self._is_lost:
            self.transport.write(head)

    def write(self, parts: list[bytes]) -> None:
        """Sends body bytes, all in one go; never holds any back. To a client that is gone it does nothing."""
        if self._is_lost:
            return
        head, self._held_head = self._held_head, b""
        if self._framing is Framing.CHUNKED:
            size = sum(map(len, parts))
            framed: Sequence[bytes] = (b"%x\r\n" % size, *parts, b"\r\n") if size else ()
        else:
            framed = parts if self._framing is not Framing.NONE else ()
        if data := b"".join((head, *framed)):
            self.transport.write(data)

    def end_response(self) -> None:
        """The body is complete."""
        assert self._framing is not None
        if self._framing is Framing.CHUNKED:
            self._held_head += b"0\r\n\r\n"
        self._framing = None
        self.flush_head()

    def respond(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Sends a whole response of the gateway's own."""
        head = b"HTTP/1.1 %d %s" % (status, _REASONS.get(status, b"OK"))
        fields = [
            *headers,
            (b"Content-Type", b"application/json"),
            (b"Content-Length", b"%d" % len(body)),
        ]
        is_head = self._current is not None and self._current.method == "HEAD"
        if self._current is None:  # refused before there was a request
            lines = b"".join(b"%s: %s\r\n" % field for field in fields)
            body = b"" if self._parser.refused_method == "HEAD" else body
            self.transport.write(b"%s\r\n%sConnection: close\r\n\r\n%s" % (head, lines, body))
            return
        self.start_response(head, fields, Framing.NONE if is_head else Framing.LENGTH)
        self.write([body])
        self.end_response()

    def refuse(self, protocol: Protocol, refusal: Refusal, receipts: RawHeaders | None = None) -> None:
        """Answers with a refusal in the protocol's own shape."""
        headers = list(receipts or ())
        if refusal.retry_after_s is not None:
            headers.append((b"Retry-After", b"%d" % refusal.retry_after_s))
        status = http_status(refusal.reason)
        if status == 401:
            headers.append((b"WWW-Authenticate", b"Bearer"))
        self.respond(status, headers, error_body(protocol, refusal))

    def abort(self) -> None:
        """Resets the connection, so that no client can take what it got for the whole."""
        self._must_close = True
        if self._is_lost:
            return
        accepted = self.transport.get_extra_info("socket")
        if accepted is not None:
            with contextlib.suppress(OSError):  # the client has reset it already
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()

    # --- the connection's own task ---------------------------------------------------------------

    async def _serve(self) -> None:
        try:
            while not self._must_close and (request := await self._next_request()) is not None:
                try:
                    await self._listener.handler(self, request)
                finally:
                    self._listener.budget.give_back(len(request.body))
                    self._current = None
                    self._idle_since = self._listener.now()
                if self.is_answering:  # the handler stopped half-way
                    self.abort()
                elif not (self._is_lost or self._parser.requests or self._parser.refusal):
                    self.transport.resume_reading()
                    self._continue_if_wanted()
            if self._parser.refusal is not None and not self._must_close:
                await self._refuse_and_linger(self._parser.refusal)
        finally:
            self._close()

    async def _next_request(self) -> HttpRequest | None:
        """The next request; None if the connection is to be closed."""
        while not self._parser.requests:
            if self._parser.refusal is not None or self._listener.is_draining:
                return None
            self._arrival = self._listener.loop.create_future()
            await self._arrival
        self._current = self._parser.requests.popleft()
        return self._current

    def _continue_if_wanted(self) -> None:
        """Asks for a body that the client holds back, unless a response is still on its way."""
        if self._parser.wants_continue and self._current is None and not self._parser.requests:
            self._parser.wants_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _refuse_and_linger(self, refusal: Refusal) -> None:
        """Answers, and reads on for a while: closing on unread bytes would reset the answer away."""
        self._is_discarding = True
        self.transport.resume_reading()
        path = self._parser.refused_target.partition(b"?")[0].decode("latin-1")
        self.refuse(classify("POST", path).protocol, refusal)
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        await asyncio.sleep(self._limits.linger_s)
        self._close()

    def _close(self) -> None:
        if not self._is_lost and self._closing_since is None:
            self._closing_since = self._listener.now()
            self.transport.close()

    def drain(self) -> None:
        """No further request is taken; an idle connection closes now."""
        if self._arrival is not None and not self._arrival.done() and self.is_idle:
            self._arrival.set_result(None)

    def check_timeouts(self, now: float) -> None:
        """Called about once a second."""
        limits = self._limits
        if any(
            since is not None and now - since > limits.client_stall_s
            for since in (self._paused_since, self._closing_since)
        ):
            self.abort()
        elif self._current is not None or self._is_discarding:
            return
        elif self._parser.is_mid_request:
            waited = now - self._first_byte
            if (
                (self._parser.is_in_head and waited > limits.head_timeout_s)
                or (self._parser.is_in_body and now - self._last_read > limits.body_stall_s)
                or waited > limits.request_timeout_s
            ):
                self._parser.refuse(
                    Refusal(
                        reason=RefusalReason.REQUEST_TIMEOUT, message="The request did not arrive in time."
                    )
                )
                if self._arrival is not None and not self._arrival.done():
                    self._arrival.set_result(None)
        elif now - max(self._idle_since, self._last_read) > limits.keep_alive_s:
            self._close()
