"""A connection of HTTP/2 on which gRPC is spoken, as a server sees it: frames, flow control, calls.

Source: RFC 9113.

Deviations: no TLS, no priorities, no push; a client's trailers only end its sending, as gRPC has none.

Invariants: whatever the peer does wrong ends its stream or its connection, never the process; what it sends
is taken up to the windows that it was given, and a call gets no more of those while messages of it wait to be
read or to be sent; nothing is read while the peer does not read; what one read brings about is written once.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from gateway.server.picker.calls import Call
from gateway.server.picker.frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FIRST_WINDOW_BYTES,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEAD,
    INITIAL_WINDOW,
    MAX_FRAME_BYTES,
    MAX_STREAMS,
    MAX_WINDOW,
    NO_ERROR,
    NUMBER,
    PADDED,
    PING,
    PREFACE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    SETTING,
    SETTINGS,
    TABLE_SIZE,
    WINDOW_BYTES,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    frame,
)
from gateway.server.picker.hpack import Decoder, Fields, HpackError

_CONNECTION_WINDOW_BYTES: Final = 1 << 24
_MAX_BLOCK_BYTES: Final = 1 << 14
"""Of a header block."""
_MAX_SETTINGS: Final = 100
"""Frames; one may change the windows of all streams, and a peer has hardly more than two."""
_UNREAD_BYTES: Final = 1 << 20
"""That the peer leaves unread before we read nothing more."""


class BrokenError(Exception):
    """The peer breaks the rules of the connection."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Server(Protocol):
    """Who has the connections."""

    max_streams: int

    def connected(self, connection: "Http2Connection") -> bool:
        """False if the connection is one too many."""

    def disconnected(self, connection: "Http2Connection") -> None: ...

    def called(self, call: Call, fields: Fields) -> None:
        """A client begins to ask for something."""


class Http2Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._rest = b""
        """Of what was read: it begins a frame."""
        self._has_begun = self._is_reading = False
        self._is_asked = self._is_leaving = False
        """The peer was asked to open no more streams; it was told that no more are taken."""
        self._headers = Decoder()
        self._block: bytearray | None = None
        """Of headers that go on in the next frame, with the stream and the flags that they began with."""
        self._block_of = self._block_flags = 0
        self._last = self._settings_seen = 0
        """The newest stream."""
        self.calls: dict[int, Call] = {}
        self.owing: dict[int, Call] = {}
        """Those that have more to send than the peer gives windows for."""
        self.peer = ""
        self.window = self.first_window = FIRST_WINDOW_BYTES
        """That the peer gives: to all streams together, and to each at first."""
        self._untold = 0
        """Bytes that were read since the peer was given more of the connection's window."""
        self._out: list[bytes] = []

    # --- transport -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_UNREAD_BYTES)
        if not self._server.connected(self):
            self.transport.abort()
            return
        self.peer = (self.transport.get_extra_info("peername") or ("",))[0]
        settings = (
            (TABLE_SIZE, 0),  # so blocks do not depend on each other
            (MAX_STREAMS, self._server.max_streams),
            (INITIAL_WINDOW, WINDOW_BYTES),
        )
        self.send(frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*each) for each in settings)))
        more = _CONNECTION_WINDOW_BYTES - FIRST_WINDOW_BYTES
        self.send(frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(more)))

    def connection_lost(self, _: Exception | None) -> None:
        self._is_leaving = True
        for call in list(self.calls.values()):
            call.left()
        self.calls.clear()
        self._server.disconnected(self)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._is_reading = True
        try:
            self._read(self._rest + data if self._rest else data)
        except BrokenError as error:
            self._break_off(error.code)
        finally:
            self._is_reading = False
            if self._out:
                out, self._out = self._out, []
                self.transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._is_leaving and not self.calls:
            self.transport.close()

    def eof_received(self) -> None:
        """Who sends no more wants no more."""

    def send(self, data: bytes) -> None:
        """All that is sent while a read is worked on goes out in one write."""
        if self._is_reading:
            self._out.append(data)
        else:
            self.transport.write(data)

    def leave(self) -> None:
        """The peer shall open no more streams; the connection ends behind those that run. Streams that are on
        their way now are served: they came before the answer to our ping (RFC 9113 §6.8)."""
        if not self._is_asked and not self._is_leaving:
            self._is_asked = True
            self.send(_goaway(MAX_WINDOW, NO_ERROR) + frame(PING, 0, 0, bytes(8)))

    def ended(self, call: Call) -> None:
        """The call is over on both sides."""
        if self.calls.pop(call.stream, None) is not None:
            self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self._is_leaving and not self.calls and not self._is_reading:
            self.transport.close()

    def _break_off(self, code: int) -> None:
        self.send(_goaway(self._last, code))
        self._is_leaving = True
        self._rest = b""
        calls = list(self.calls.values())
        self.calls.clear()
        for call in calls:
            call.left()

    # --- frames ----------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        at = 0
        if not self._has_begun:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise BrokenError(PROTOCOL_ERROR)
            if len(data) < len(PREFACE):
                self._rest = data
                return
            self._has_begun, at = True, len(PREFACE)
        end = len(data)
        self._rest = b""
        while end - at >= 9:
            high, low, kind, flags, stream = HEAD.unpack_from(data, at)
            size = high << 8 | low
            if size > MAX_FRAME_BYTES:
                raise BrokenError(FRAME_SIZE_ERROR)
            if end - at < 9 + size:
                break
            begin, at = at + 9, at + 9 + size
            if self._block is not None and kind != CONTINUATION:
                raise BrokenError(PROTOCOL_ERROR)
            if kind < len(_FRAMES):
                _FRAMES[kind](self, flags, stream & MAX_WINDOW, data[begin:at])
        if at < end and not self._is_over:
            self._rest = data[at:] if at else data

    @property
    def _is_over(self) -> bool:
        return self._is_leaving and not self.calls

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        if flags & PADDED:
            payload = _unpadded(payload)
        self._untold += size
        if self._untold >= _CONNECTION_WINDOW_BYTES // 2:
            self.send(frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(self._untold)))
            self._untold = 0
        call = self.calls.get(stream)
        if call is None:
            if not 0 < stream <= self._last:
                raise BrokenError(PROTOCOL_ERROR)
            return  # it was ended meanwhile
        call.received(payload, size, is_last=bool(flags & END_STREAM))

    def _headers_came(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = _unpadded(payload)
        if flags & WITH_PRIORITY:
            payload = payload[5:]
        if flags & END_HEADERS:
            self._block_came(flags, stream, payload)
        else:
            self._block, self._block_of, self._block_flags = bytearray(payload), stream, flags

    def _continued(self, flags: int, stream: int, payload: bytes) -> None:
        if self._block is None or stream != self._block_of:
            raise BrokenError(PROTOCOL_ERROR)
        self._block += payload
        if len(self._block) > _MAX_BLOCK_BYTES or not (payload or flags & END_HEADERS):
            raise BrokenError(ENHANCE_YOUR_CALM)
        if flags & END_HEADERS:
            block, self._block = bytes(self._block), None
            self._block_came(self._block_flags, stream, block)

    def _block_came(self, flags: int, stream: int, block: bytes) -> None:
        try:
            fields = self._headers.decode(block)
        except HpackError:
            raise BrokenError(COMPRESSION_ERROR) from None
        if (known := self.calls.get(stream)) is not None:
            known.received(b"", 0, is_last=True)
            return
        if stream <= self._last:
            return  # it was ended meanwhile
        if not stream & 1:
            raise BrokenError(PROTOCOL_ERROR)
        self._last = stream
        if self._is_leaving or len(self.calls) >= self._server.max_streams:
            self.reset(stream, REFUSED_STREAM)
            return
        call = self.calls[stream] = Call(self, stream)
        self._server.called(call, fields)
        if flags & END_STREAM:
            call.received(b"", 0, is_last=True)

    def _was_reset(self, _: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4 or stream == 0:
            raise BrokenError(FRAME_SIZE_ERROR)
        if (call := self.calls.pop(stream, None)) is not None:
            call.left()

    def _settings(self, flags: int, _: int, payload: bytes) -> None:
        if flags & ACK:
            return
        if len(payload) % 6:
            raise BrokenError(FRAME_SIZE_ERROR)
        self._settings_seen += 1
        if self._settings_seen > _MAX_SETTINGS:
            raise BrokenError(ENHANCE_YOUR_CALM)
        window = dict(SETTING.iter_unpack(payload)).get(INITIAL_WINDOW, self.first_window)
        if window > MAX_WINDOW:
            raise BrokenError(FLOW_CONTROL_ERROR)
        more, self.first_window = window - self.first_window, window
        for call in list(self.calls.values()) if more else ():
            call.window += more
            call.go_on_sending()
        self.send(frame(SETTINGS, ACK, 0))

    def _pinged(self, flags: int, _: int, payload: bytes) -> None:
        if not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        elif self._is_asked and not self._is_leaving:
            self._is_leaving = True
            self.send(_goaway(self._last, NO_ERROR))

    def _window_came(self, _: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenError(FRAME_SIZE_ERROR)
        more = NUMBER.unpack(payload)[0] & MAX_WINDOW
        if stream == 0:
            self.window += more
            if more == 0 or self.window > MAX_WINDOW:
                raise BrokenError(FLOW_CONTROL_ERROR)
            for call in list(self.owing.values()):
                if self.window <= 0:
                    break
                call.go_on_sending()
        elif (asked := self.calls.get(stream)) is not None:
            asked.window += more
            if more == 0 or asked.window > MAX_WINDOW:
                self.reset(stream, FLOW_CONTROL_ERROR)
                asked.left()
            else:
                asked.go_on_sending()

    def _pushed(self, _: int, __: int, ___: bytes) -> None:
        raise BrokenError(PROTOCOL_ERROR)

    def _ignored(self, _: int, __: int, ___: bytes) -> None:
        """Priorities are not ours to follow, and who goes away closes."""

    # --- for calls -------------------------------------------------------------------------------

    def reset(self, stream: int, code: int) -> None:
        self.send(frame(RST_STREAM, 0, stream, NUMBER.pack(code)))
        self.calls.pop(stream, None)

    def give_window(self, stream: int, size: int) -> None:
        self.send(frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(size)))


def _goaway(last: int, code: int) -> bytes:
    return frame(GOAWAY, 0, 0, NUMBER.pack(last) + NUMBER.pack(code))


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise BrokenError(PROTOCOL_ERROR)
    return payload[1 : len(payload) - payload[0]]


_FRAMES: Final[tuple[Callable[[Http2Connection, int, int, bytes], None], ...]] = (
    Http2Connection._data,  # noqa: SLF001
    Http2Connection._headers_came,  # noqa: SLF001
    Http2Connection._ignored,  # noqa: SLF001
    Http2Connection._was_reset,  # noqa: SLF001
    Http2Connection._settings,  # noqa: SLF001
    Http2Connection._pushed,  # noqa: SLF001
    Http2Connection._pinged,  # noqa: SLF001
    Http2Connection._ignored,  # noqa: SLF001
    Http2Connection._window_came,  # noqa: SLF001
    Http2Connection._continued,  # noqa: SLF001
)
"""By kind."""
