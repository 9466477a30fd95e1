"""One call of gRPC on a stream of HTTP/2: messages in, messages out, a status.

Source: gRPC over HTTP/2 (grpc/doc/PROTOCOL-HTTP2.md).

Deviations: messages are not compressed, which nobody does who was not told that we can; a deadline is the
client's to keep: it resets the stream.

Invariants: a call reads no further than its window while messages of it wait to be read, or to be sent; of a
message that does not come in one piece its size is told (`on_size`) before it is kept.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.server.picker.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    HEADERS,
    MAX_FRAME_BYTES,
    NO_ERROR,
    WINDOW_BYTES,
    frame,
)
from gateway.upstream.moments import Moment

if TYPE_CHECKING:
    from gateway.server.picker.http2 import Http2Connection

OK, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 8, 12, 13
"""Of gRPC's status codes."""
_PREFIX: Final = 5
"""Bytes before a message: whether it is compressed, and its size."""
_HEAD: Final = b"\x88\x0f\x10\x10application/grpc"
"""In HPACK: `:status: 200`, `content-type: application/grpc`."""


class CallError(Exception):
    """What came is no call that could be answered."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Call:
    def __init__(self, connection: "Http2Connection", stream: int) -> None:
        self.stream = stream
        self.window = connection.first_window
        """That the peer gives this stream."""
        self.on_left: Callable[[], None] = _nothing
        """Called when the client has left before the end was said."""
        self.on_size: Callable[[int], None] = _nothing_of
        """Told the size of a message that does not come in one piece. What it raises, `read` raises."""
        self._connection = connection
        self._messages: deque[bytes] = deque()
        self._partial = bytearray()
        self._is_told_of = False
        """Of what is partial the size was told."""
        self._room = WINDOW_BYTES
        """That the client may still send."""
        self._untold = 0
        """Bytes that came since it was given more."""
        self._error: Exception | None = None
        self._waits: Moment | None = None
        self._all_came = self._has_begun = self._is_over = False
        self._owed = bytearray()
        """That the peer gives no window for."""
        self._end = b""

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._connection.peer

    async def read(self) -> bytes | None:
        """The next message; None behind the last one. Raises CallError, or what `on_size` raised."""
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._all_came:
                return None
            self._waits = Moment()
            await self._waits
        message = self._messages.popleft()
        self._give_window()
        return message

    def write(self, message: bytes) -> None:
        """Never waits. To a client that is gone it does nothing."""
        if self._is_over:
            return
        data = b"\0%s%s" % (len(message).to_bytes(4), message)
        head = b""
        if not self._has_begun:
            self._has_begun = True
            head = frame(HEADERS, END_HEADERS, self.stream, _HEAD)
        connection, size = self._connection, len(data)
        if not self._owed and size <= min(self.window, connection.window, MAX_FRAME_BYTES):
            self.window -= size
            connection.window -= size
            connection.send(head + frame(DATA, 0, self.stream, data))
            return
        if head:
            connection.send(head)
        self._owed += data
        self.go_on_sending()

    def end(self, code: int = OK, message: str = "") -> None:
        """Says the status, behind all that was written; `message`: plain ASCII, without `%`."""
        if self._is_over:
            return
        self._is_over = True
        block = b"" if self._has_begun else _HEAD
        block += _field(b"grpc-status", b"%d" % code)
        if message:
            block += _field(b"grpc-message", message.encode("ascii"))
        self._end = frame(HEADERS, END_HEADERS | END_STREAM, self.stream, block)
        if not self._owed:
            self._say_end()

    def _say_end(self) -> None:
        self._connection.send(self._end)
        if not self._all_came:  # it need not send the rest
            self._connection.reset(self.stream, NO_ERROR)
        self._connection.ended(self)

    # --- for the connection ----------------------------------------------------------------------

    def received(self, data: bytes, size: int, *, is_last: bool) -> None:
        """`size`: how much of the window it took."""
        self._room -= size
        if self._room < 0:
            self._connection.reset(self.stream, FLOW_CONTROL_ERROR)
            self.left()
            return
        self._untold += size
        if not self._is_over and self._error is None:
            try:
                self._collect(data)
            except Exception as error:  # noqa: BLE001 - for who reads
                self._error = error
                self._partial.clear()
        if is_last:
            self._all_came = True
            if self._partial and self._error is None:
                self._error = CallError(INTERNAL, "a message that is cut")
        self._give_window()
        waits = self._waits
        if waits is not None and (self._messages or self._all_came or self._error is not None):
            self._waits = None
            waits.come()

    def go_on_sending(self) -> None:
        connection, owed = self._connection, self._owed
        while owed:
            size = min(self.window, connection.window, MAX_FRAME_BYTES, len(owed))
            if size <= 0:
                connection.owing[self.stream] = self
                return
            self.window -= size
            connection.window -= size
            connection.send(frame(DATA, 0, self.stream, bytes(owed[:size])))
            del owed[:size]
        connection.owing.pop(self.stream, None)
        self._give_window()
        if self._end:
            self._say_end()

    def left(self) -> None:
        """The client has, or the connection is gone."""
        self._is_over = True
        self._owed.clear()
        self._connection.owing.pop(self.stream, None)
        on_left, self.on_left = self.on_left, _nothing
        on_left()

    def _collect(self, data: bytes) -> None:
        if not self._partial and len(data) >= _PREFIX and data[0] == 0:
            if int.from_bytes(data[1:_PREFIX]) == len(data) - _PREFIX:  # nearly always
                self._messages.append(data[_PREFIX:])
                return
        partial = self._partial
        partial += data
        while len(partial) >= _PREFIX:
            if partial[0]:
                raise CallError(UNIMPLEMENTED, "messages may not be compressed")
            end = _PREFIX + int.from_bytes(partial[1:_PREFIX])
            if len(partial) < end:
                if not self._is_told_of and not self._messages:  # else those before it count first
                    self._is_told_of = True
                    self.on_size(end - _PREFIX)
                return
            self._messages.append(bytes(partial[_PREFIX:end]))
            del partial[:end]
            self._is_told_of = False

    def _give_window(self) -> None:
        if self._untold >= WINDOW_BYTES // 2 and not (
            self._messages or self._owed or self._all_came or self._is_over
        ):
            self._connection.give_window(self.stream, self._untold)
            self._room += self._untold
            self._untold = 0


def _field(name: bytes, value: bytes) -> bytes:
    """In HPACK, for short ones."""
    return b"\0%c%s%c%s" % (len(name), name, len(value), value)


def _nothing() -> None:
    pass


def _nothing_of(_: int) -> None:
    pass
