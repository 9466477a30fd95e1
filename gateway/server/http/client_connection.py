"""One client connection: bytes in become requests for the handler, its answer goes out as bytes.

One request is handled after the other, in the call that brought its last byte as far as that goes. If
the client leaves, the handler is cancelled; that is how it learns of it.

Flow control: writing never waits. While the client does not read, the backend that its response comes from is
not read either (`bind_source`), and no further request is begun. While a request is handled, what arrives is
held unread, up to a bound; beyond it the client is not read.

What its states mean: `connection_states.py`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.request import Protocol as WireProtocol
from gateway.server.auth.authenticator import Caller
from gateway.server.http.body_limits import take_room
from gateway.server.http.connection_states import State
from gateway.server.http.request_parser import HttpRequest, RequestParser
from gateway.server.http.response_writer import GONE, ResponseWriter
from gateway.upstream.one_shot import Run
from gateway.upstream.tcp_keepalive import keep_alive
from gateway.wire.headers import RawHeaders

if TYPE_CHECKING:
    from gateway.server.http.listener import Listener

Handler = Callable[["ClientConnection", HttpRequest], Coroutine[Any, Any, None]]

# Held of what a client sends while it is being answered. Beyond it the client is not read until it was
# answered, and if it leaves meanwhile, that is not seen until something is written to it.
_MAX_UNREAD_BYTES: Final = 64 << 10


class Source(Protocol):
    """What a response comes from."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


# Requests of one client that are answered at once, before others are served.
_AT_ONCE: Final = 4
# So long a connection that begins as a drain does may take to bring its request, which is on its way.
_FIRST_REQUEST_S: Final = 0.5


class ClientConnection(ResponseWriter):
    def __init__(self, listener: "Listener") -> None:
        super().__init__(listener)
        self._limits = listener.limits
        self.budget = listener.budget
        self.parser = RequestParser(listener.limits, listener.budget, self._authorize)
        # The handler of the current request, once it has to wait.
        self._run: Run | None = None
        self._source: Source | None = None
        self._check_tunnel: Callable[[float], None] | None = None
        self._is_reading = True
        self._kept_bytes = 0
        self.now = listener.now
        now = self.now()
        # `_since`: the connection is idle, lingering or closing since then.
        self._since = self._last_read = self._first_byte = now
        self._paused_since: float | None = None

    @property
    def is_paused(self) -> bool:
        return self._paused_since is not None

    # --- from the transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        keep_alive(self.transport, idle_s=self._limits.tcp_keepalive_s)
        peername = transport.get_extra_info("peername")
        self.parser.peer = peername[0] if isinstance(peername, tuple) else "local"
        if not self._listener.connected(self):
            message = "The gateway has as many connections as it may."
            self._refuse_and_linger(
                Refusal(reason=RefusalReason.MEMORY_FULL, message=message, retry_after_s=5)
            )
            if not self._listener.may_linger:
                self.close()
        elif self._limits is self._listener.limits:  # else other connections may read what this one may not
            self.parser.heads = self._listener.heads

    def data_received(self, data: bytes) -> None:
        state, parser = self.state, self.parser
        if state is State.IDLE:
            now = self._last_read = self._listener.now()
            if parser.hold(data):
                self._first_byte = now
            if self._paused_since is None:
                self._serve()
                return
        elif state in _WITH_HANDLER:
            if parser.is_between and not data.strip(b"\r\n"):
                return  # an empty line, which some clients send behind a body
            parser.hold(data)
        else:
            return  # the connection is closing
        if parser.unread_bytes > _MAX_UNREAD_BYTES and self._is_reading:
            self._is_reading = False
            self.transport.pause_reading()

    def _authorize(self, method: str, target: bytes, headers: RawHeaders) -> Caller | Refusal:
        return self._listener.authenticator.authorize(method, target, headers, self.parser.peer)

    def eof_received(self) -> bool:
        """A half-closed client is treated as gone; it gets what is ready, but no half of a response."""
        if self.state in _WITH_HANDLER:
            self.abort()
        else:
            self.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.state = State.CLOSED
        self._listener.disconnected(self)
        self.parser.close()
        if self._run is not None:
            self._run.cancel()
        self._check_tunnel = None  # the two hold each other

    def pause_writing(self) -> None:
        self._paused_since = self._listener.now()
        if self._source is not None:
            self._source.pause()

    def resume_writing(self) -> None:
        self._paused_since = None
        if self._source is not None:
            self._source.resume()
        elif self.state is State.IDLE:
            self._first_byte = self._last_read = self._listener.now()
            self._serve()

    def bind_source(self, source: Source | None) -> None:
        """From now on `source` is paused whenever the client does not read; the one before goes on."""
        if self._paused_since is not None:
            if self._source is not None:
                self._source.resume()
            if source is not None:
                source.pause()
        self._source = source

    # --- another protocol ------------------------------------------------------------------------

    def switch(self, lines: bytes, protocol: asyncio.Protocol, check: Callable[[float], None]) -> bytes:
        """Gives the transport to `protocol`, which reports its loss here. The handler goes on until then, or
        until it ends the connection. `lines`: the response; `check` is called about once a second. Returns
        the client's bytes behind its request."""
        if not self.leave_serving(State.SWITCHED):
            return b""
        self._check_tunnel, self.status = check, int(lines[9:12])
        self.transport.write(lines)
        self.transport.set_protocol(protocol)
        self._read_again()
        self.forget_caller()  # its key may have been revoked since its handshake came
        return self.parser.take_unread()

    def _read_again(self) -> None:
        if not self._is_reading and not self.transport.is_closing():
            self._is_reading = True
            self.transport.resume_reading()

    # --- one request after the other -------------------------------------------------------------

    def _serve(self) -> None:
        """Handles what has come, until a handler has to wait or the client does not read what it got.

        A loop: handlers may end at once.
        """
        parser, handled = self.parser, 0
        while self.state is State.IDLE and self._paused_since is None:
            may_read = handled < _AT_ONCE and (parser.unread or parser.whole)
            request = parser.next_request() if may_read else None
            handled += 1
            if request is None:
                if parser.unread or parser.whole:
                    self._serve_soon()
                elif parser.refusal is not None or parser.wants_continue or not self._is_reading:
                    self._read_on()
                return
            self.state = State.SERVING
            self._current = request
            run = Run(self._listener.handler(self, request), self._request_over)
            run.advance()
            if self._current is not None:
                self._run = run

    def _serve_soon(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self.transport.pause_reading()
        self._listener.loop.call_soon(self._serve)

    def _request_over(self) -> None:
        assert self._current is not None
        self._count(self._current)
        self.status, self.has_failed, self.is_logged = 0, False, True
        self.refused = self.ticket = None
        if self._current.body:
            self.let_go_of_body()
        if self._kept_bytes:
            self.budget.give_back(self._current.head.caller.tenant.id, self._kept_bytes)
            self._kept_bytes = 0
        self._current = None
        self._since = self._first_byte = self._last_read = self._listener.now()
        if self.state is State.SWITCHED:
            self.close()
        elif self.state is not State.ANSWERED:  # the handler stopped half-way
            self.abort()
        elif self._must_close or self._listener.is_draining:
            self.close()
        else:
            self.state = State.IDLE
        if self._run is not None:  # else `_serve` goes on
            self._run = None
            self._serve()

    def _count(self, request: HttpRequest) -> None:
        """Counts the request under its status; as in nginx, 499 if the client left before the response."""
        self.status = self.status or (499 if self.state is State.CLOSED else 500)
        has_failed = self.has_failed or self.state in (State.ANSWERING, State.CLOSING)  # it was cut
        self._listener.counted(request.head.caller.endpoint.name, self.status, has_failed=has_failed)

    def refuse_instead(self, protocol: WireProtocol, refusal: Refusal) -> None:
        """Ends the current request and its handler: refuses it, or cuts a response that has begun."""
        if self.state is not State.SERVING or self._run is None:
            self.abort()
            return
        self.refuse(protocol, refusal)
        self._run.cancel()

    def let_go_of_body(self) -> None:
        request = self._current
        if request is not None and request.body:
            self.budget.give_back(request.head.caller.tenant.id, len(request.body))
            request.body = b""

    def keep_more(self, size: int) -> bool:
        """Counts bytes of the answer that are kept until the request is over; False if there is no room."""
        current = self._current
        has_room = current is not None and self.budget.take(current.head.caller.tenant.id, size)
        self._kept_bytes += size * has_room
        return has_room

    def hold_instead(self, request: HttpRequest) -> None:
        """Holds the current request in another form, such as inflated, whose body counts instead of the one
        that came. Raises RefusedRequest."""
        size, tenant = len(request.body), request.head.caller.tenant.id
        take_room(self.budget, self._listener.limits, tenant, size, whole=size)
        self.let_go_of_body()
        self._current = request

    def _read_on(self) -> None:
        if self.parser.refusal is not None:
            self._refuse_and_linger(self.parser.refusal)
            return
        self._read_again()
        if self.parser.wants_continue:
            self.parser.wants_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse_and_linger(self, refusal: Refusal) -> None:
        """Answers, and reads on for a while: closing on unread bytes would reset the answer away."""
        self.state = State.LINGERING
        self._since = self._listener.now()
        self._read_again()
        endpoint = self._listener.authenticator.endpoint("POST", self.parser.refused_target)
        self.refuse(endpoint.protocol, refusal)
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()

    def close(self) -> None:
        if self.state not in GONE:
            self._since = self._listener.now()
            self.state = State.CLOSING
            self.transport.close()

    # --- the listener's side ---------------------------------------------------------------------

    def forget_caller(self) -> None:
        self.parser.forget_head()
        if self.state is State.SWITCHED and self._current is not None:
            head = self._current.head
            judged = self._authorize(head.method, head.target, head.headers)
            if isinstance(judged, Refusal) or judged.tenant.id != head.caller.tenant.id:
                self.abort()

    def drain(self) -> None:
        if self.state is State.IDLE and not self.parser.is_mid_request:
            self.close()

    def check_timeouts(self, now: float) -> None:
        limits, state = self._limits, self.state
        if self._paused_since is not None and now - self._paused_since > limits.client_stall_s:
            self.abort()
        elif state is State.CLOSING:
            if now - self._since > limits.client_stall_s:
                self.abort()
        elif state is State.LINGERING:
            if now - self._since > limits.drain_rejected_body_s:
                self.close()
        elif state is State.SWITCHED and self._check_tunnel is not None:
            self._check_tunnel(now)
        elif state is State.IDLE and self._paused_since is None:
            self._check_request(now)

    def _check_request(self, now: float) -> None:
        limits = self._limits
        if self.parser.is_mid_request:
            waited = now - self._first_byte
            if (
                (self.parser.is_in_head and waited > limits.head_timeout_s)
                or (self.parser.is_in_body and now - self._last_read > limits.body_stall_s)
                or waited > limits.request_timeout_s
            ):
                message = "The request did not arrive in time."
                self.parser.refuse(Refusal(reason=RefusalReason.REQUEST_TIMEOUT, message=message))
                self._read_on()
        elif now - max(self._since, self._last_read) > (
            limits.keep_alive_s if not self._listener.is_draining else _FIRST_REQUEST_S
        ):
            self.close()


_WITH_HANDLER: Final = frozenset((State.SERVING, State.ANSWERING, State.ANSWERED))
