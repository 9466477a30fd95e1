"""Frames of one direction of a WebSocket, read strictly and written (RFC 6455, §5 and §7.4).

No extension is ever agreed on, so reserved bits are errors. Fragments are put together. Of a message that is
larger than is kept, only its end is told. Sans-I/O: bytes in, messages out; what a client masks with is an
argument.

Invariants: what is read does not depend on how the bytes were cut; no more is held than `keeps`, a head and a
control frame.
"""

import base64
import enum
import hashlib
from typing import Final

import msgspec

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_CONTROL_BYTES: Final = 125
_HEAD_BYTES: Final = 2
_MASK_BYTES: Final = 4
_FINAL, _RESERVED, _MASKED = 0x80, 0x70, 0x80
_SENDABLE_CODES: Final = frozenset((*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)))
"""Close codes that may stand in a frame; the others are a program's own words for having got none."""


class Opcode(enum.IntEnum):
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class CloseCode(enum.IntEnum):
    """Those that the gateway itself sends."""

    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    SERVICE_RESTART = 1012
    TRY_AGAIN_LATER = 1013


_OPCODES: Final = {int(each): each for each in Opcode}


class Message(msgspec.Struct, frozen=True):
    """A whole message, or a control frame."""

    opcode: Opcode
    data: bytes | None
    """None if it was larger than is kept."""


class FrameError(Exception):
    def __init__(self, code: CloseCode, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.found: list[Message] = []
        """What was whole before it, of the bytes that were given last."""
        self.good_bytes = 0
        """How many of these bytes were frames."""


class FrameReader:
    """Give it what arrives. After a `FrameError` it may not be used any more."""

    def __init__(self, *, is_masked: bool, keeps: int, max_bytes: int | None = None) -> None:
        """`is_masked`: a client sends it; `keeps`: bytes of a message; `max_bytes`: a larger one is an error,
        as soon as its length is told."""
        self._is_masked = is_masked
        self._keeps = keeps
        self._max_bytes = max_bytes
        self._head = bytearray()
        self._opcode: Opcode | None = None
        """Of the frame whose payload is read."""
        self._is_final = False
        self._mask = b""
        self._left = self._done = 0
        """Bytes of its payload that are to come, and that have come."""
        self._control = bytearray()
        self._message: Opcode | None = None
        """What the message is that has begun."""
        self._kept = bytearray()
        self._size = 0

    @property
    def is_between_frames(self) -> bool:
        return self._opcode is None and not self._head

    @property
    def is_between_messages(self) -> bool:
        return self.is_between_frames and self._message is None

    @property
    def held_bytes(self) -> int:
        """Of the message that has begun."""
        return len(self._kept)

    def feed(self, data: bytes) -> list[Message]:
        """The messages that these bytes complete. Raises FrameError; then it stands behind the good bytes."""
        found: list[Message] = []
        at, end, good = 0, len(data), 0 if self.is_between_frames else None
        try:
            while at < end:
                if self._opcode is None:
                    missing = self._head_size() - len(self._head)
                    self._head += data[at : at + missing]
                    at += missing
                    if len(self._head) < self._head_size():
                        continue  # its second byte tells how long it is
                    self._begin_frame()
                else:
                    piece = data[at : at + self._left]
                    at += len(piece)
                    self._take(piece)
                if self._opcode is not None and not self._left:
                    whole = self._end_frame()
                    good = at
                    if whole is not None:
                        found.append(whole)
        except FrameError as error:
            error.found = found
            if good is not None:
                error.good_bytes = good
                self._head.clear()
                self._control.clear()
                self._opcode = None
            raise
        return found

    def _head_size(self) -> int:
        if len(self._head) < _HEAD_BYTES:
            return _HEAD_BYTES
        second = self._head[1]
        length = {126: 2, 127: 8}.get(second & 0x7F, 0)
        return _HEAD_BYTES + length + (_MASK_BYTES if second & _MASKED else 0)

    def _begin_frame(self) -> None:
        first, second = self._head[0], self._head[1]
        opcode = _OPCODES.get(first & 0x0F)
        is_final, is_masked, size = bool(first & _FINAL), bool(second & _MASKED), second & 0x7F
        if first & _RESERVED or opcode is None:
            raise _wrong("a reserved bit or an unknown opcode")
        if is_masked != self._is_masked:
            raise _wrong("a mask, or none, where it has to be otherwise")
        if opcode >= Opcode.CLOSE and not (is_final and size <= _MAX_CONTROL_BYTES):
            raise _wrong("a control frame in pieces, or too long")
        if (opcode is Opcode.CONTINUATION) != (self._message is not None) and opcode < Opcode.CLOSE:
            raise _wrong("a continuation of nothing, or none where one is due")
        if size > _MAX_CONTROL_BYTES:
            size = int.from_bytes(self._head[2 : 4 if size == 126 else 10])
        if size >= 1 << 63:
            raise _wrong("a length of 64 bits")
        if opcode < Opcode.CLOSE and self._max_bytes is not None and self._size + size > self._max_bytes:
            raise FrameError(CloseCode.TOO_BIG, f"a message may have {self._max_bytes} bytes")
        self._opcode, self._is_final, self._left, self._done = opcode, is_final, size, 0
        self._mask = bytes(self._head[-_MASK_BYTES:]) if is_masked else b""
        self._head.clear()
        if opcode in (Opcode.TEXT, Opcode.BINARY):
            self._message = opcode

    def _take(self, piece: bytes) -> None:
        assert self._opcode is not None
        if self._mask:
            turn = self._done % _MASK_BYTES
            piece = masked(piece, self._mask[turn:] + self._mask[:turn])
        self._left -= len(piece)
        self._done += len(piece)
        if self._opcode >= Opcode.CLOSE:
            self._control += piece
            return
        self._size += len(piece)
        if self._size <= self._keeps:
            self._kept += piece
        else:
            self._kept.clear()

    def _end_frame(self) -> Message | None:
        opcode, control = self._opcode, bytes(self._control)
        assert opcode is not None
        if opcode is Opcode.CLOSE and control and int.from_bytes(control[:2]) not in _SENDABLE_CODES:
            raise _wrong("a close code that may not be sent")
        self._opcode = None
        if opcode >= Opcode.CLOSE:
            self._control.clear()
            return Message(opcode, control)
        if not self._is_final:
            return None
        message, self._message = self._message, None
        assert message is not None
        whole = Message(message, bytes(self._kept) if self._size <= self._keeps else None)
        self._kept.clear()
        self._size = 0
        return whole


def masked(data: bytes, mask: bytes) -> bytes:
    """Twice the same mask: the data again. `mask`: four bytes."""
    size = len(data)
    pattern = mask * (size // _MASK_BYTES) + mask[: size % _MASK_BYTES]
    return (int.from_bytes(data) ^ int.from_bytes(pattern)).to_bytes(size)


def frame(opcode: Opcode, data: bytes, mask: bytes = b"") -> bytes:
    """A message in one frame. `mask`: four bytes that nobody can foresee, for what a client sends."""
    size, bit = len(data), _MASKED if mask else 0
    if size <= _MAX_CONTROL_BYTES:
        head = bytes((_FINAL | opcode, bit | size))
    elif size < 1 << 16:
        head = bytes((_FINAL | opcode, bit | 126)) + size.to_bytes(2)
    else:
        head = bytes((_FINAL | opcode, bit | 127)) + size.to_bytes(8)
    return b"".join((head, mask, masked(data, mask) if mask else data))


def close_payload(code: CloseCode, why: str) -> bytes:
    return int(code).to_bytes(2) + why.encode("ascii", "replace")[: _MAX_CONTROL_BYTES - 2]


def accepted(key: bytes) -> bytes:
    """What a server has to answer to a client's `Sec-WebSocket-Key`."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


def _wrong(what: str) -> FrameError:
    return FrameError(CloseCode.PROTOCOL_ERROR, what)
