"""One connection to a replica: sends a request, and hands on its response as it is read.

Every read is handed on before the next one: `data_received` parses, collects the body bytes of that
read, and gives them to `sink` before it returns. Whoever waits for the head or the end goes on last. A large
read is taken in slices, between which others are served: it may hold a hundred thousand chunks.

What its states mean: `connection_states.py`.
"""

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, cast

import httptools

from gateway.upstream.connection_states import UNANSWERED_STATES, State
from gateway.upstream.errors import AnswerCut, AnswerMissing, AnswerTimedOut, ConnectFailed
from gateway.upstream.one_shot import OneShot
from gateway.upstream.response_head import ResponseHead, read_head
from gateway.wire.handshake import accept_of
from gateway.wire.headers import RawHeaders, get_header
from gateway.wire.splice import Chunk

# Takes the body bytes of one read, in order, and whether they are the last.
Sink = Callable[[list[bytes], bool], None]
# Takes a read that is one chunk of the body, framed as it came, and what is in it.
ChunkSink = Callable[[bytes, bytes], None]

_MAX_HEAD_BYTES: Final = 256 << 10
_MAX_FIELDS: Final = 1000
# Of a chunk that passes the parser by: more than is ever read at once.
_MAX_SIZE_DIGITS: Final = 6
# So much of one read is parsed and looked at in one turn of the loop.
_SLICE_BYTES: Final = 32 << 10
# Of reads that are remembered; events differ by a token's length, so a few dozen do.
_SIZES: Final = 1024

# Members of an enum, looked up once: each request needs them all.
_PAUSED: Final = (State.PAUSED,)
_READY, _SENT, _ANSWERING = State.READY, State.SENT, State.ANSWERING


@lru_cache(_SIZES)
def _start_of_chunk(read_bytes: int) -> bytes:
    """How a read of so many bytes begins that is one chunk; empty if none is so long."""
    for digits in range(1, _MAX_SIZE_DIGITS + 1):
        size = read_bytes - digits - 4
        if size > 0 and len(f"{size:x}") == digits:
            return b"%x\r\n" % size
    return b""


class UpstreamConnection(asyncio.Protocol):
    """Use: `send`, await `head_came`, then `take_complete_body`, or else set the sink and await `done`."""

    may_be_silent = False
    """Nobody waits for anything in particular of its response."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        # What is under `transport`; without TLS the same.
        self._tcp: asyncio.Transport
        self.sent_at = 0.0
        self.last_read = 0.0
        self.head: ResponseHead | None = None
        # `head_came` fails with `AnswerMissing`; `done`, the end of the body, with `AnswerCut`.
        self.head_came = self.done = OneShot()
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        # Read, and not parsed yet; then a slice is due, or the client does not read.
        self._rest = b""
        self._slice: asyncio.Handle | None = None
        self._is_reading = True
        self._fields: tuple[int, bytes, RawHeaders, bool] | None = None
        # What was made of `_fields`, which the next response may have, too.
        self._fields_head: ResponseHead
        self._sink: Sink | None = None
        self._chunk_sink: ChunkSink | None = None
        # Whether the newest chunk has ended; set by llhttp's callbacks, without a call of Python's.
        self._has_chunk_ended = [False]
        self.on_chunk_header = partial(self._has_chunk_ended.__setitem__, 0, False)
        self.on_chunk_complete = partial(self._has_chunk_ended.__setitem__, 0, True)
        # The parser expects the beginning of a chunk, so whole ones may pass it by.
        self._is_between_chunks = False
        # Body bytes that the sink has not had.
        self._read: list[bytes] = []
        # llhttp's callback: one for each chunk, so it had better be cheap.
        self.on_body = self._read.append
        # Of the status line, in the pieces in which it came.
        self._reasons: list[bytes] = []
        self.on_status = self._reasons.append
        # None once the connection is lost: the two hold each other.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        # Bytes of this response so far; until its head has come.
        self._received = 0
        self.state = State.NEW
        self._is_whole = False
        self._is_head_request = False
        # The request is the opening handshake of a WebSocket, with this key.
        self.websocket_key: bytes | None = None
        # The response leaves the connection open.
        self._keep_alive = False

    @property
    def has_sent_all(self) -> bool:
        """False while a replica that answered early has not taken the whole request."""
        return not self._tcp.get_write_buffer_size()  # a TLS transport does not count what is under it

    @property
    def is_reusable(self) -> bool:
        is_kept = self.state is _READY and not self._rest and not self.transport.is_closing()
        return is_kept and not self._tcp.get_write_buffer_size()

    def send(self, chunks: list[Chunk], *, is_head_request: bool, websocket_key: bytes | None = None) -> None:
        """Sends one request; `chunks` are its head and body; `websocket_key`: of a handshake.
        Raises ConnectFailed, with nothing sent, if the replica closed the connection meanwhile."""
        if self.transport.is_closing():
            raise ConnectFailed("it closed the connection before anything was sent")
        if self.state is not _READY:
            raise RuntimeError(f"a connection that is {self.state.value} cannot send")
        self.state = _SENT
        self.head = None
        self.head_came, self.done = OneShot(), OneShot()
        self._is_head_request = is_head_request
        self.websocket_key = websocket_key
        self.may_be_silent = self._is_whole = False
        self._sink = self._chunk_sink = None
        self._is_between_chunks = False
        self._read.clear()
        self._headers: RawHeaders = []
        self._received = 0
        self._reasons.clear()
        self.sent_at = self.last_read = self._now()
        if len(chunks) == 1:
            self.transport.write(chunks[0])
        else:
            self.transport.writelines(chunks)

    def give_up_on_head(self) -> None:
        """The head took too long; whoever awaits it gets `AnswerTimedOut`."""
        self.head_came.fail(AnswerTimedOut("the replica did not answer in time"))

    def give_up_on_rest(self) -> None:
        """The replica has been silent for too long; whoever awaits the end gets `AnswerCut`."""
        self.done.fail(AnswerCut("the replica stopped sending"))

    def take_complete_body(self) -> list[bytes] | None:
        return self._read if self._is_whole else None

    def put_back(self, body: bytes) -> None:
        """What a sink has got of a whole body, for `take_complete_body`."""
        self._read.append(body)

    def set_sink(self, sink: Sink, chunk_sink: ChunkSink | None = None) -> None:
        """What came before is given to it at once, the end of a body without bytes as well. `chunk_sink` is
        given what it can take instead."""
        self._sink = sink
        if self._read or self._is_whole:
            self._flush(sink)
        self._chunk_sink = chunk_sink

    @property
    def is_switched(self) -> bool:
        """It is a WebSocket's from now on; `head` is that of the response that says so."""
        return self.state is State.SWITCHED

    def take_rest(self) -> bytes:
        rest = b"".join((*self._read, self._rest))
        self._read.clear()
        self._rest = b""
        return rest

    def pause(self) -> None:
        if self.state is State.ANSWERING:
            self.state = State.PAUSED
            self._let_in(False)

    def resume(self) -> None:
        if self.state is State.PAUSED:
            self.state = State.ANSWERING
            self.last_read = self._now()
            self._read_on()

    def _read_on(self) -> None:
        if not self._rest:
            self._let_in(True)
        elif self._slice is None:
            self._slice = self._loop.call_soon(self._take_slice)

    def _let_in(self, is_reading: bool) -> None:
        if self._is_reading is not is_reading:
            self._is_reading = is_reading
            (self.transport.resume_reading if is_reading else self.transport.pause_reading)()

    def abort(self) -> None:
        if self.state is not State.CLOSED:
            self.state = State.CLOSING
            self.transport.abort()

    # --- from the transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self._tcp = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.state = _READY

    def encrypted(self, transport: asyncio.Transport) -> None:
        """From now on `transport` is used, which speaks TLS over the one before."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        state = self.state
        if self._is_between_chunks and self._chunk_sink is not None and state is _ANSWERING:
            # Read strictly: a size in the one way that we would write it, and nothing behind the chunk.
            start = _start_of_chunk(len(data))
            if start and data.startswith(start) and data.endswith(b"\r\n"):
                self.last_read = self._now()
                self._chunk_sink(data, data[len(start) : -2])
                return
        if not self._rest and len(data) <= _SLICE_BYTES:
            self._take(data)
            return
        is_first, self._rest = not self._rest, self._rest + data
        self._is_between_chunks = False  # what is read next stands behind the rest
        if is_first:
            self._take_slice()

    def _take_slice(self) -> None:
        """The next one. Whoever goes on with it knows by `_rest` that there is more."""
        self._slice = None
        if self.state is State.PAUSED:
            return  # `resume` goes on
        data, self._rest = self._rest[:_SLICE_BYTES], self._rest[_SLICE_BYTES:]
        self._take(data)
        if self._rest:
            self._is_between_chunks = False
        if self.transport.is_closing() or self.state in _PAUSED:  # by now, perhaps
            return
        if self._rest:
            self._let_in(False)
        self._read_on()

    def _take(self, data: bytes) -> None:
        state = self.state
        if state is not _ANSWERING and state not in UNANSWERED_STATES:
            if state is State.SWITCHED:
                self._read.append(data)
            elif state is not State.CLOSING:
                self.abort()  # a response without a request
            return
        self.last_read = self._now()
        if not self._feed(data):
            return
        head_came, done, is_over = self.head_came, self.done, self._is_whole
        if self._sink is not None:
            if is_over:
                self._flush(self._sink)
            elif self._read:
                self._sink(self._read, False)
                self._read.clear()
        elif self.head is not None:
            head_came.set()  # whoever waited has taken the whole or set the sink when this returns
        # From here on the connection may serve another request.
        if is_over:
            done.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest and exc is None:
            rest, self._rest = self._rest, b""
            self._take(rest)
        was = self.state
        is_end = (
            self.head is not None
            and not self.head.has_framing
            and exc is None
            and was in (State.ANSWERING, State.PAUSED)
        )
        if is_end:
            self._is_whole = True  # the body ends with the connection
        self.state = State.CLOSED
        self._parser = None
        if is_end:
            if self._sink is not None:
                self._flush(self._sink)
            self.done.set()
        elif not self._is_whole:
            self._fail_waiters("closed the connection")
        self._sink = self._chunk_sink = None

    def _feed(self, data: bytes) -> bool:
        assert self._parser is not None
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.is_switched and isinstance(error, httptools.HttpParserUpgrade):
                self._read.append(data[error.args[0] :])
                return True
            if not self._is_whole:
                self._fail(f"sent something that is not HTTP/1.1: {error.__context__ or error}")
                return False
            self.state = State.NOT_REUSABLE  # the response is whole; what came after it is nobody's
        self._is_between_chunks = self._has_chunk_ended[0] and data.endswith(b"\r\n")
        if self.head is None and self._received > _MAX_HEAD_BYTES:
            self._fail("sent a response head without end")
            return False
        return True

    def _flush(self, sink: Sink) -> None:
        if self._is_whole:
            self._sink = self._chunk_sink = None  # each holds the other
        sink(self._read, self._is_whole)
        self._read.clear()

    def _end(self) -> None:
        if self.state is State.PAUSED:
            self.resume()  # a transport may still give what it had read when it was paused
        self._is_whole = True
        self.state = _READY if self._keep_alive else State.NOT_REUSABLE

    def _fail(self, what: str) -> None:
        self.abort()
        self._fail_waiters(what)

    def _fail_waiters(self, what: str) -> None:
        if self.head is None:
            self.head_came.fail(AnswerMissing(f"the replica {what}"))
            return
        sink, self._sink = self._sink, None
        if self._read and sink is not None:
            self._flush(sink)
        self.done.fail(AnswerCut(f"the replica {what}"))
        self.head_came.set()

    # --- llhttp's callbacks ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_whole:  # what follows a complete response must not become part of it
            raise ValueError("more than one response")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:  # else it is a trailer field
            if len(self._headers) >= _MAX_FIELDS:
                raise ValueError("a head of too many fields")
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            if status == 101:
                self._switch()
            return
        self._keep_alive = self._parser.should_keep_alive() and not self._is_head_request
        fields = (status, b"".join(self._reasons), self._headers, self._is_head_request)
        if fields != self._fields:
            self._fields = fields
            self._fields_head = read_head(*fields)
        self.head = self._fields_head
        self.state = _ANSWERING
        if self.head.is_empty:
            self._end()

    def _switch(self) -> None:
        """Only to the handshake of a WebSocket, and by a replica that read this very handshake."""
        assert self._parser is not None
        key, names = self.websocket_key, {name.lower() for name, _ in self._headers}
        if (
            key is None
            or not self._parser.should_upgrade()
            or (get_header(self._headers, b"upgrade") or "").lower() != "websocket"
            or get_header(self._headers, b"sec-websocket-accept") != accept_of(key)
            or names & {b"content-length", b"transfer-encoding"}
        ):
            raise ValueError("a change of protocol")
        self.head = read_head(101, b"".join(self._reasons), self._headers, False)
        self.state = State.SWITCHED

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._is_whole:  # it has no body, whatever its head says
            return
        if 100 <= self._parser.get_status_code() < 200:
            self._headers = []
            self._reasons.clear()
        else:
            self._end()
