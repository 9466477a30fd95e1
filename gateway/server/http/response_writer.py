"""Responses onto a client's connection, as bytes: framed for it, each read's bytes in one write."""

import asyncio
import contextlib
import enum
import socket
import struct
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.request import Protocol
from gateway.errors import error_body, http_status, is_final
from gateway.server.http.connection_states import ConnectionStateError, State
from gateway.server.http.request_parser import HttpRequest, RequestParser
from gateway.wire.headers import get_header

if TYPE_CHECKING:
    from gateway.server.http.listener import Listener
    from gateway.server.proxy.ticket import Ticket


class Framing(enum.Enum):
    """What marks the end of a response's body."""

    NONE = "none"
    """No body at all (HEAD, 204, 304)."""
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"
    """HTTP/1.0 without a length: the connection closes."""


_CHUNKED: Final = Framing.CHUNKED
# For SO_LINGER: closing drops what is unsent and resets the connection.
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class ResponseWriter(asyncio.Protocol):
    """The handler's side of a client's connection."""

    transport: asyncio.Transport
    parser: RequestParser

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self.state = State.IDLE
        self._current: HttpRequest | None = None
        # The response that was begun is the last one of this connection.
        self._must_close = False
        self.framing = Framing.NONE
        # The head of that response, while it has not been sent.
        self.held_head = b""
        self.status = 0
        # It is no good one, under any status.
        self.has_failed = False
        self.refused: RefusalReason | None = None
        # Of the current request, if it reached the brain.
        self.ticket: Ticket | None = None
        # False if another gateway's access log has the current request.
        self.is_logged = True

    def leave_serving(self, state: State) -> bool:
        if self.state is _SERVING:
            self.state = state
            return True
        if self.state in GONE:
            return False
        raise ConnectionStateError(f"a connection that is {self.state.value} cannot become {state.value}")

    def start_response(self, lines: bytes, framing: Framing) -> None:
        """Sends the head, with the first of the body or at the latest by `flush_head`: one write, not two.

        `lines`: the status line and end-to-end fields only, Content-Length included.
        """
        assert self._current is not None
        self.leave_serving(_ANSWERING)
        self.status = int(lines[9:12])
        head = self._current.head
        if framing is _CHUNKED:
            lines += b"Transfer-Encoding: chunked\r\n"
        if not head.keep_alive or self._listener.is_draining or framing is Framing.CLOSE:
            self._must_close = True
            lines += b"Connection: close\r\n"
        elif head.is_http_1_0:
            lines += b"Connection: keep-alive\r\n"
        self.framing = framing
        self.held_head = lines + b"\r\n"

    def flush_head(self) -> None:
        head, self.held_head = self.held_head, b""
        if head and self.state not in GONE:
            self.transport.write(head)

    def write(self, parts: list[bytes], is_last: bool = False) -> None:
        """Sends body bytes, all in one go; never holds any back. To a client that is gone it does nothing."""
        state, framing, head = self.state, self.framing, self.held_head
        if state is not _ANSWERING:
            if state in GONE:
                return
            raise ConnectionStateError(f"a connection that is {state.value} has no response to write")
        self.held_head = b""
        if is_last:
            self.state = _ANSWERED
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
        lines = b"HTTP/1.1 %d %s\r\n%s%sContent-Type: application/json\r\nContent-Length: %d\r\n" % (
            status, HTTPStatus(status).phrase.encode(), self.own_lines(), lines, len(body)
        )  # fmt: skip
        if self._current is None:  # refused before there was a request
            self._listener.counted("", status)
            body = b"" if self.parser.refused_method == "HEAD" else body
            self.transport.write(b"%sConnection: close\r\n\r\n%s" % (lines, body))
            return
        is_head = self._current.head.method == "HEAD"
        self.start_response(lines, Framing.NONE if is_head else Framing.LENGTH)
        self.write([body], is_last=True)

    def own_lines(self) -> bytes:
        """Lines of every response of the gateway's own; those for a page of another origin let it read the
        response, as vLLM does by default."""
        headers = self.parser.refused_headers if self._current is None else self._current.head.headers
        date = b"Date: %s\r\n" % formatdate(usegmt=True).encode()
        return date if get_header(headers, b"origin") is None else date + _FOR_PAGES

    def refuse(
        self, protocol: Protocol, refusal: Refusal, lines: bytes = b"", *, request_id: str | int | None = None
    ) -> None:
        """Answers with a refusal in the protocol's own shape; `lines`: header lines to go with it;
        `request_id`: of JSON-RPC, if the request is one."""
        self.refused = refusal.reason
        self._listener.refusals[refusal.reason.value] += 1
        self.respond(*refusal_parts(protocol, refusal, lines, request_id=request_id))

    def refuse_or_abort(self, protocol: Protocol, refusal: Refusal) -> None:
        """Refuses the current request, or cuts a response that has begun."""
        if self.state is _SERVING:
            self.refuse(protocol, refusal)
        else:
            self.abort()

    def abort(self) -> None:
        """Resets the connection, so that no client can take what it got for the whole."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSING
        accepted = self.transport.get_extra_info("socket")
        if accepted is not None:
            with contextlib.suppress(OSError):  # the client has reset it already
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()


GONE: Final = frozenset((State.CLOSING, State.CLOSED))
_SERVING: Final = State.SERVING
_ANSWERING: Final = State.ANSWERING
_ANSWERED: Final = State.ANSWERED
_FOR_PAGES: Final = b"Access-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: *\r\n"


def refusal_parts(
    protocol: Protocol, refusal: Refusal, lines: bytes = b"", *, request_id: str | int | None = None
) -> tuple[int, bytes, bytes]:
    if refusal.retry_after_s is not None:
        lines += b"Retry-After: %d\r\n" % refusal.retry_after_s
    if is_final(refusal.reason):  # what OpenAI's and Anthropic's SDKs obey before any status
        lines += b"x-should-retry: false\r\n"
    status = http_status(refusal.reason)
    if status == 401:
        lines += b"WWW-Authenticate: Bearer\r\n"
    elif status == 426:  # it must name a protocol (RFC 9110 §15.5.22)
        lines += b"Upgrade: HTTP/1.1\r\nConnection: Upgrade\r\n"
    return status, lines, error_body(protocol, refusal, request_id=request_id)
