"""One client connection: bytes in become requests for the handler, its answer goes out as bytes.

One request is handled after the other, in the call that brought its last byte as far as that goes. If
the client leaves, the handler is cancelled; that is how it learns of it. Writing never waits: a relay that
writes more than the client reads is told by `on_pause` and `on_resume`, and stops reading from its backend.
"""

import asyncio
import contextlib
import enum
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.request import Protocol
from gateway.errors import error_body, http_status
from gateway.server.door import Visitor
from gateway.server.request_parser import HttpRequest, RequestParser
from gateway.upstream.moments import Run
from gateway.wire.endpoints import classify
from gateway.wire.headers import RawHeaders

if TYPE_CHECKING:
    from gateway.server.listener import Listener

Handler = Callable[["ClientConnection", HttpRequest], Coroutine[Any, Any, None]]


class Framing(enum.Enum):
    """How the end of a response's body is told."""

    NONE = "none"
    """No body at all (HEAD, 204, 304)."""
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"
    """HTTP/1.0 without a length: the connection closes."""


_CHUNKED: Final = Framing.CHUNKED
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing drops what is unsent and resets the connection."""


class ClientConnection(asyncio.Protocol):
    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._limits = listener.limits
        self._parser = RequestParser(listener.limits, listener.budget, self._judge)
        self._run: Run | None = None
        """The handler of the current request."""
        self._current: HttpRequest | None = None
        self._is_serving = False
        self._is_answering = False
        self._framing: Framing | None = None
        """Of the response that is being sent; None between responses."""
        self._held_head = b""
        """The head of that response, while it has not been sent."""
        self._is_discarding = False
        self._is_lost = False
        self._is_reading = True
        self._must_close = False
        now = listener.now()
        self._idle_since = self._last_read = self._first_byte = now
        self._paused_since: float | None = None
        self._closing_since: float | None = None
        self.peer = ""
        """The client's address, without the port."""
        self.transport: asyncio.Transport
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    # --- from the transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        peername = transport.get_extra_info("peername")
        self.peer = peername[0] if isinstance(peername, tuple) else "local"
        if not self._listener.connected(self):
            message = "The gateway has as many connections as it may."
            self._refuse_and_linger(
                Refusal(reason=RefusalReason.MEMORY_FULL, message=message, retry_after_s=5)
            )

    def data_received(self, data: bytes) -> None:
        if self._is_discarding:
            return
        parser = self._parser
        now = self._last_read = self._listener.now()
        if not parser.is_mid_request:
            self._first_byte = now
        parser.feed(data)
        if parser.wants_continue:
            self._continue_if_wanted()
        if parser.requests or parser.refusal is not None:
            if self._current is not None:
                self._is_reading = False
                self.transport.pause_reading()  # a pipelined request waits for its turn
            else:
                self._serve()

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
        if self._run is not None:
            self._run.cancel()

    def pause_writing(self) -> None:
        self._paused_since = self._listener.now()
        if self.on_pause is not None:
            self.on_pause()

    def resume_writing(self) -> None:
        self._paused_since = None
        if self.on_resume is not None:
            self.on_resume()

    # --- one request after the other -------------------------------------------------------------

    def _serve(self) -> None:
        """Handles what has come, until a handler has to wait. A loop: handlers may end at once."""
        self._is_serving = True
        while self._parser.requests and not self._must_close:
            self._current = request = self._parser.requests.popleft()
            self._run = run = Run(self._listener.handler(self, request), self._request_over)
            run.go_on()
            if self._current is not None:
                break
        self._is_serving = False
        if self._current is None:
            self._rest()

    def _request_over(self) -> None:
        assert self._current is not None
        self._listener.budget.give_back(len(self._current.body))
        self._current = self._run = None
        self._is_answering = False
        self._idle_since = self._listener.now()
        if self._framing is not None:  # the handler stopped half-way
            self.abort()
        if self._is_serving:
            return
        if self._parser.requests:
            self._serve()
        else:
            self._rest()

    def _rest(self) -> None:
        """Nothing is left to be handled."""
        if self._is_lost:
            return
        if self._must_close:
            self._close()
        elif self._parser.refusal is not None:
            self._refuse_and_linger(self._parser.refusal)
        elif self._listener.is_draining:
            self._close()
        else:
            if not self._is_reading:
                self._read_on()
            if self._parser.wants_continue:
                self._continue_if_wanted()

    def _read_on(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.transport.resume_reading()

    def _continue_if_wanted(self) -> None:
        """Asks for a body that the client holds back, unless a response is still on its way."""
        if self._parser.wants_continue and self._current is None and not self._parser.requests:
            self._parser.wants_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse_and_linger(self, refusal: Refusal) -> None:
        """Answers, and reads on for a while: closing on unread bytes would reset the answer away."""
        self._is_discarding = True
        self._read_on()
        path = self._parser.refused_target.partition(b"?")[0].decode("latin-1")
        self.refuse(classify("POST", path).protocol, refusal)
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        self._listener.loop.call_later(self._limits.linger_s, self._close)

    def _close(self) -> None:
        if not self._is_lost and self._closing_since is None:
            self._closing_since = self._listener.now()
            self.transport.close()

    # --- the handler's side ----------------------------------------------------------------------

    @property
    def is_answering(self) -> bool:
        """The response to the current request was begun; it may be complete."""
        return self._is_answering

    def start_response(self, lines: bytes, framing: Framing) -> None:
        """Sends the head, with the first of the body or at the latest by `flush_head`: one write, not two.

        `lines`: the status line and end-to-end fields only, Content-Length included.
        """
        assert self._framing is None and self._current is not None
        head = self._current.head
        if framing is _CHUNKED:
            lines += b"Transfer-Encoding: chunked\r\n"
        if not head.keep_alive or self._listener.is_draining or framing is Framing.CLOSE:
            self._must_close = True
            lines += b"Connection: close\r\n"
        elif head.is_http_1_0:
            lines += b"Connection: keep-alive\r\n"
        self._framing, self._is_answering = framing, True
        self._held_head = lines + b"\r\n"

    def flush_head(self) -> None:
        """Sends the head now, if no body has come to go with it."""
        head, self._held_head = self._held_head, b""
        if head and not self._is_lost:
            self.transport.write(head)

    def write(self, parts: list[bytes], *, is_last: bool = False) -> None:
        """Sends body bytes, all in one go; never holds any back. To a client that is gone it does nothing."""
        framing, head = self._framing, self._held_head
        self._held_head = b""
        if is_last:
            self._framing = None
        if self._is_lost:
            return
        if framing is _CHUNKED:
            size = sum(map(len, parts))
            start = b"%s%x\r\n" % (head, size) if size else head
            end = (b"\r\n0\r\n\r\n" if size else b"0\r\n\r\n") if is_last else b"\r\n" if size else b""
            data = b"".join((start, *parts, end))
        elif framing is not Framing.NONE:
            data = b"".join((head, *parts))
        else:
            data = head
        if data:
            self.transport.write(data)

    def respond(self, status: int, lines: bytes, body: bytes) -> None:
        """Sends a whole response of the gateway's own; `lines`: its header lines beyond the usual."""
        lines = b"HTTP/1.1 %d %s\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n" % (
            status, _REASONS.get(status, b"OK"), lines, len(body)
        )  # fmt: skip
        if self._current is None:  # refused before there was a request
            body = b"" if self._parser.refused_method == "HEAD" else body
            self.transport.write(b"%sConnection: close\r\n\r\n%s" % (lines, body))
            return
        is_head = self._current.head.method == "HEAD"
        self.start_response(lines, Framing.NONE if is_head else Framing.LENGTH)
        self.write([body], is_last=True)

    def refuse(self, protocol: Protocol, refusal: Refusal, lines: bytes = b"") -> None:
        """Answers with a refusal in the protocol's own shape; `lines`: header lines to go with it."""
        if refusal.retry_after_s is not None:
            lines += b"Retry-After: %d\r\n" % refusal.retry_after_s
        status = http_status(refusal.reason)
        if status == 401:
            lines += b"WWW-Authenticate: Bearer\r\n"
        self.respond(status, lines, error_body(protocol, refusal))

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

    # --- the listener's side ---------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        return self._current is None and not self._parser.is_mid_request

    def drain(self) -> None:
        """No further request is taken; an idle connection closes now."""
        if self.is_idle and not self._is_discarding:
            self._close()

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
                message = "The request did not arrive in time."
                self._parser.refuse(Refusal(reason=RefusalReason.REQUEST_TIMEOUT, message=message))
                self._serve()
        elif now - max(self._idle_since, self._last_read) > limits.keep_alive_s:
            self._close()


_REASONS: Final = {
    400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found",
    408: b"Request Timeout", 413: b"Content Too Large", 431: b"Request Header Fields Too Large",
    500: b"Internal Server Error", 501: b"Not Implemented", 502: b"Bad Gateway",
    503: b"Service Unavailable", 504: b"Gateway Timeout",
}  # fmt: skip
