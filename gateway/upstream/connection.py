"""One connection to a replica: sends a request, and hands on its response as it is read.

Every read is handed on before the next one: `data_received` parses, collects the body bytes of that
read, and gives them to `sink` before it returns.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools
import msgspec

from gateway.upstream.errors import AnswerCut, AnswerMissing, AnswerTimedOut
from gateway.wire.headers import RawHeaders
from gateway.wire.splice import Chunk

Sink = Callable[[list[bytes]], None]
"""Takes the body bytes of one read, in order."""

_MAX_HEAD_BYTES: Final = 256 << 10


class ResponseHead(msgspec.Struct, kw_only=True):
    status: int
    reason: bytes
    headers: RawHeaders
    has_length: bool
    is_empty: bool
    """No body follows, whatever the headers say (HEAD, 204, 304)."""


class UpstreamConnection(asyncio.Protocol):
    """Use: `send`, await `head`, set `sink` (bytes that came before are given to it), await `done`."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.idle_since = 0.0
        self.last_read = 0.0
        self.use_count = 0
        self.head: asyncio.Future[ResponseHead]
        self.done: asyncio.Future[None]
        """Ends with the body, or raises `AnswerCut`."""
        self._sink: Sink | None = None
        self._early: list[bytes] = []
        self._read: list[bytes] = []
        self._is_busy = False
        self._is_lost = False
        self._is_head_request = False
        self._keep_alive = False
        self._has_framing = False

    @property
    def is_reusable(self) -> bool:
        return (
            self._keep_alive
            and not self._is_busy
            and not self._is_lost
            and not self.transport.is_closing()
            and not self.transport.get_write_buffer_size()  # it answered before it had the whole request
        )

    def send(self, chunks: list[Chunk], *, is_head_request: bool) -> None:
        """Sends one request; `chunks` are its head and body."""
        loop = asyncio.get_running_loop()
        self.head = loop.create_future()
        self.done = loop.create_future()
        # Whoever sees `head` fail never looks at `done`, and asyncio would complain of that.
        self.done.add_done_callback(_look_at)
        self._parser = httptools.HttpResponseParser(self)
        self._is_head_request = is_head_request
        self._is_busy = True
        self._sink = None
        self._early = []
        self._headers: RawHeaders = []
        self._head_bytes = 0
        self._reason = b""
        self._has_framing = False
        self.last_read = loop.time()
        self.use_count += 1
        if len(chunks) == 1:
            self.transport.write(chunks[0])
        else:
            self.transport.writelines(chunks)

    def give_up_on_head(self) -> None:
        """The head took too long; whoever awaits it gets `AnswerTimedOut`."""
        if not self.head.done():
            self.head.set_exception(AnswerTimedOut("the replica did not answer in time"))

    def set_sink(self, sink: Sink) -> None:
        self._sink = sink
        if self._early:
            early, self._early = self._early, []
            sink(early)
        if self._is_busy and not self._is_lost:
            self.transport.resume_reading()

    def pause(self) -> None:
        if not self._is_lost:
            self.transport.pause_reading()

    def resume(self) -> None:
        if not self._is_lost:
            self.last_read = asyncio.get_running_loop().time()
            self.transport.resume_reading()

    def abort(self) -> None:
        """Closes at once; the replica sees a client that left."""
        self._keep_alive = False
        if not self._is_lost:
            self.transport.abort()

    # --- from the transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        if not self._is_busy:
            self.abort()  # a response nobody asked for
            return
        self.last_read = asyncio.get_running_loop().time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keep_alive = False
            if self._is_busy:
                self._flush()
                self._fail(f"sent something that is not HTTP/1.1: {error.__context__ or error}")
                self.abort()
                return
            # The response is whole; what came after it is nobody's.
        if not self.head.done():
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._fail("sent a response head without end")
                self.abort()
                return
        self._flush()
        # llhttp's callbacks have cleared `_is_busy` if the response is complete.
        if not self._is_busy and not self.done.done():
            self.done.set_result(None)

    def _flush(self) -> None:
        if not self._read:
            return
        parts, self._read = self._read, []
        if self._sink is not None:
            self._sink(parts)
        else:  # the handler has not taken the head yet; it will, in this turn of the loop
            self._early += parts
            if self._is_busy:
                self.transport.pause_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if not self._is_busy:
            return
        if self.head.done() and not self._has_framing and exc is None:
            self._is_busy = False  # the body ends with the connection
            self.done.set_result(None)
        else:
            self._fail("closed the connection")

    def _fail(self, what: str) -> None:
        self._is_busy = False
        self._keep_alive = False
        if not self.head.done():
            self.head.set_exception(AnswerMissing(f"the replica {what}"))
            self.head.add_done_callback(_look_at)
        if not self.done.done():
            self.done.set_exception(AnswerCut(f"the replica {what}"))

    # --- llhttp's callbacks ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if not self._is_busy:  # what follows a complete response must not become part of it
            raise ValueError("more than one response")

    def on_status(self, part: bytes) -> None:
        self._reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head.done():  # else it is a trailer field
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            if status == 101:
                raise ValueError("a change of protocol")
            return
        has_length = has_coding = False
        for name, _ in self._headers:
            match name.lower():
                case b"content-length":
                    has_length = True
                case b"transfer-encoding":
                    has_coding = True
                case _:
                    pass
        is_empty = self._is_head_request or status in (204, 304)
        self._has_framing = has_length or has_coding or is_empty
        self._keep_alive = self._parser.should_keep_alive() and not self._is_head_request
        if not self.head.done():
            self.head.set_result(
                ResponseHead(
                    status=status,
                    reason=self._reason,
                    headers=self._headers,
                    has_length=has_length,
                    is_empty=is_empty,
                )
            )
        if is_empty:
            self._is_busy = False

    def on_body(self, part: bytes) -> None:
        self._read.append(part)

    def on_message_complete(self) -> None:
        if 100 <= self._parser.get_status_code() < 200:
            self._headers, self._reason = [], b""
            return
        self._is_busy = False


def _look_at(future: "asyncio.Future[ResponseHead] | asyncio.Future[None]") -> None:
    if not future.cancelled():
        future.exception()
