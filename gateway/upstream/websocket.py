"""A WebSocket to a replica: the handshake, and then bytes both ways. Who reads frames sits above.

Only an answer that proves that the replica read this very handshake, and agrees to no extension, opens it
(RFC 6455 §4.1). What anything else says is not passed on: the client is told to ask by HTTP, and hears it
there.
"""

import asyncio
from http import HTTPStatus
from typing import Final, Protocol, cast

import httptools

from gateway.upstream.errors import AnswerMissing, AnswerTimedOut, UpstreamError
from gateway.upstream.moments import Moment
from gateway.upstream.response_head import ResponseHead, read_head
from gateway.wire.headers import RawHeaders, get_header
from gateway.wire.websocket_frames import accepted

_MAX_HEAD_BYTES: Final = 64 << 10
_END: Final = b"\r\n\r\n"
_OF_A_MOMENT: Final = frozenset(
    (
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    )
)
"""Statuses that say something of this client or of this moment, not of what the replica can do."""
_DROPPED: Final = frozenset((b"sec-websocket-accept", b"sec-websocket-extensions"))


class NoWebSocket(UpstreamError):  # noqa: N818 - a state of affairs
    """It answered, and does not agree."""

    def __init__(self, why: str, *, is_lasting: bool) -> None:
        """`is_lasting`: it will not agree the next time either."""
        super().__init__(why)
        self.is_lasting = is_lasting


class Listener(Protocol):
    """Who gets what the replica sends."""

    def replica_sent(self, data: bytes) -> None: ...

    def replica_lost(self) -> None:
        """Nothing more will come."""

    def replica_takes(self, *, more: bool) -> None:
        """Whether it reads what it is sent."""


class UpstreamWebSocket(asyncio.Protocol):
    """Use: `ask`, await `opened`, then `listen`."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.opened = Moment()
        """Fails with NoWebSocket or AnswerMissing."""
        self.head: ResponseHead
        """Of the answer that opened it."""
        self.asked_s = self.last_read = 0.0
        self._now = asyncio.get_running_loop().time
        self._key = b""
        self._unread = b""
        self._is_open = self._is_lost = self._is_paused = False
        self._listener: Listener | None = None
        self._status = 0
        self._reason = b""
        self._headers: RawHeaders = []

    def ask(self, lines: bytes, key: bytes) -> None:
        self._key = key
        self.asked_s = self.last_read = self._now()
        self.transport.write(lines)

    def give_up(self) -> None:
        """It takes too long; whoever awaits it gets `AnswerTimedOut`."""
        self.opened.fail(AnswerTimedOut("the replica did not answer in time"))

    def listen(self, listener: Listener) -> None:
        """What came before is given to it at once."""
        self._listener = listener
        if self._unread:
            data, self._unread = self._unread, b""
            listener.replica_sent(data)
        if self._is_lost:
            listener.replica_lost()

    def send(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def pause(self) -> None:
        if not self._is_paused and not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.last_read = self._now()
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def close(self) -> None:
        """What was sent is sent; nobody listens any more."""
        self._listener = None
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    # --- from the transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def encrypted(self, transport: asyncio.Transport) -> None:
        """From now on `transport` is used, which speaks TLS over the one before."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.last_read = self._now()
        if self._listener is not None:
            self._listener.replica_sent(data)
        elif not self.opened.has_come:
            self._unread += data
            self._read_head()
        elif self._is_open:
            self._unread += data

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._listener is not None:
            self._listener.replica_lost()
        self._listener = None
        self.opened.fail(AnswerMissing("the replica closed the connection"))

    def pause_writing(self) -> None:
        if self._listener is not None:
            self._listener.replica_takes(more=False)

    def resume_writing(self) -> None:
        if self._listener is not None:
            self._listener.replica_takes(more=True)

    # --- the handshake ---------------------------------------------------------------------------

    def _read_head(self) -> None:
        head, end, rest = self._unread.partition(_END)
        if not end:
            if len(self._unread) > _MAX_HEAD_BYTES:
                self.opened.fail(NoWebSocket("a response head without end", is_lasting=False))
            return
        self._unread = rest
        parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(head + end)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as error:
            self.opened.fail(NoWebSocket(f"something that is not HTTP/1.1: {error}", is_lasting=False))
            return
        self._status = parser.get_status_code()
        if self._status != HTTPStatus.SWITCHING_PROTOCOLS:
            is_lasting = self._status not in _OF_A_MOMENT
            self.opened.fail(NoWebSocket(f"status {self._status}", is_lasting=is_lasting))
        elif not self._agrees():
            self.opened.fail(NoWebSocket("a handshake that is not in order", is_lasting=True))
        else:
            kept = [field for field in self._headers if field[0].lower() not in _DROPPED]
            self.head = read_head(self._status, self._reason, kept, False)
            self._is_open = True
            self.opened.come()

    def _agrees(self) -> bool:
        upgrade = get_header(self._headers, b"upgrade") or ""
        accept = get_header(self._headers, b"sec-websocket-accept") or ""
        extensions = get_header(self._headers, b"sec-websocket-extensions") or ""
        return upgrade.lower() == "websocket" and accept.encode() == accepted(self._key) and not extensions

    def on_status(self, part: bytes) -> None:
        self._reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))
