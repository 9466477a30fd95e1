"""One client connection: bytes in become requests for the handler, its answer goes out as bytes.

One request is handled after the other, in the call that brought its last byte as far as that goes. If
the client leaves, the handler is cancelled; that is how it learns of it. Writing never waits: a relay that
writes more than the client reads is told by `on_pause` and `on_resume`, and stops reading from its backend.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from gateway.domain.decision import Refusal, RefusalReason
from gateway.server.door import Visitor
from gateway.server.request_parser import HttpRequest, RequestParser
from gateway.server.response_writer import ResponseWriter
from gateway.upstream.moments import Run
from gateway.wire.endpoints import classify
from gateway.wire.headers import RawHeaders

if TYPE_CHECKING:
    from gateway.server.listener import Listener

Handler = Callable[["ClientConnection", HttpRequest], Coroutine[Any, Any, None]]


class ClientConnection(ResponseWriter):
    def __init__(self, listener: "Listener") -> None:
        super().__init__(listener)
        self._limits = listener.limits
        self._parser = RequestParser(listener.limits, listener.budget, self._judge)
        self._run: Run | None = None
        """The handler of the current request."""
        self._is_serving = False
        self._is_discarding = False
        self._is_reading = True
        now = listener.now()
        self._idle_since = self._last_read = self._first_byte = now
        self._paused_since: float | None = None
        self._closing_since: float | None = None
        self.peer = ""
        """The client's address, without the port."""
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
        self._refused_method = self._parser.refused_method
        path = self._parser.refused_target.partition(b"?")[0].decode("latin-1")
        self.refuse(classify("POST", path).protocol, refusal)
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        self._listener.loop.call_later(self._limits.linger_s, self._close)

    def _close(self) -> None:
        if not self._is_lost and self._closing_since is None:
            self._closing_since = self._listener.now()
            self.transport.close()

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
