"""What goes over the socket of a local store: four bytes of length, big-endian, then msgpack.

A connection begins with `HELLO` from the client; then every request is answered, in order.
"""

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from gateway.shared_state.protocol import Entry

HELLO: Final = b"turnpike-store 1\n"
MAX_FRAME_BYTES: Final = 32 << 20


class Find(msgspec.Struct, frozen=True, array_like=True, tag=1):
    keys: list[bytes]


class Claim(msgspec.Struct, frozen=True, array_like=True, tag=2):
    key: bytes
    value: bytes
    ttl_s: float


class Exchange(msgspec.Struct, frozen=True, array_like=True, tag=4):
    origin: str
    gauges: bytes
    ttl_s: float


class WriteAll(msgspec.Struct, frozen=True, array_like=True, tag=8):
    entries: list[Entry]


class Add(msgspec.Struct, frozen=True, array_like=True, tag=16):
    key: bytes
    more: list[float]
    least: list[float]
    ttl_s: float


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=9):
    pass


Request = Find | Claim | Exchange | Add | WriteAll | Ping

OK: Final = 0
REFUSED: Final = 1
"""The first byte of an answer; after `REFUSED` comes why, as text."""

_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """The other side does not speak this."""


def framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


class Reader:
    """Cuts what arrives into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises `FrameError` once a frame is announced that is too long. To be read to its end."""
        rest: bytes | bytearray = data
        if self._rest:
            self._rest += data
            rest = self._rest
        at, end = 0, len(rest)
        while end - at >= 4:
            (length,) = _LENGTH.unpack_from(rest, at)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes")
            if end - at - 4 < length:
                break
            yield bytes(rest[at + 4 : at + 4 + length])
            at += 4 + length
        if rest is self._rest:
            del self._rest[:at]
        elif at < end:
            self._rest += rest[at:]
