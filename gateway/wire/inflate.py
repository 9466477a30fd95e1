"""Bounded inflation of gzip and deflate, so that a copy of a compressed body can be read.

Bodies are passed on as they came; only our own copy is inflated. A small body that swells into a huge
one is a known attack, so size has a limit, and for what clients send, so has the ratio.
"""

import zlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zlib import _Decompress as _Stream

MAX_INFLATED_BYTES = 64 * 2**20
MAX_RATIO = 200
"""Inflated to deflated. Long agent histories reach about 20."""

_ANY_SIZE_BYTES = 2**20
"""Below this, the ratio does not matter."""

_PIECE_BYTES = 256 * 2**10

_GZIP_WINDOW, _ZLIB_WINDOW, _RAW_WINDOW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS

INFLATABLE = frozenset({"gzip", "x-gzip", "deflate"})
"""The content codings that `Inflater` knows."""


class InflationError(ValueError):
    """The bytes are not of that coding, or swell beyond the limits."""


class Inflater:
    """Inflates one body, chunk by chunk, up to a limit."""

    def __init__(self, coding: str, limit_bytes: int = MAX_INFLATED_BYTES) -> None:
        self._window = _ZLIB_WINDOW if coding == "deflate" else _GZIP_WINDOW
        self._stream: _Stream | None = None
        self._left_bytes = limit_bytes

    @property
    def is_complete(self) -> bool:
        return self._stream is not None and self._stream.eof

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """What the chunk inflates to, in pieces. Raises InflationError, perhaps after some pieces."""
        if not chunk:
            return
        stream = self._open(chunk)
        is_more = True
        while is_more:
            piece = _inflate(stream, chunk)
            yield piece[: self._left_bytes]
            self._left_bytes -= len(piece)
            if self._left_bytes < 0:
                raise InflationError("the body swells beyond the limit")
            chunk = stream.unconsumed_tail
            # A full piece may leave some output behind, even when all input is used.
            is_more = bool(chunk) or len(piece) == _PIECE_BYTES

    def _open(self, chunk: bytes) -> "_Stream":
        """The stream; its first byte tells zlib's wrapper (RFC 1950 §2.2) from bare deflate.

        RFC 9110 §8.4.1.2 asks for the wrapper, but some servers leave it out.
        """
        if self._stream is None:
            is_bare = self._window == _ZLIB_WINDOW and chunk[0] & 0x0F != 8
            self._stream = zlib.decompressobj(_RAW_WINDOW if is_bare else self._window)
        return self._stream


def _inflate(stream: "_Stream", chunk: bytes) -> bytes:
    try:
        piece = stream.decompress(chunk, _PIECE_BYTES)
    except zlib.error as error:
        raise InflationError(str(error)) from error
    if stream.unused_data:
        raise InflationError("bytes follow the end of the compressed body")
    return piece


def inflated_limit_bytes(deflated_bytes: int) -> int:
    """What a body of a client may inflate to."""
    return min(MAX_INFLATED_BYTES, max(_ANY_SIZE_BYTES, MAX_RATIO * deflated_bytes))


def inflating(body: bytes, coding: str) -> Generator[None, None, bytes]:
    """The whole body, inflated, in slices. Raises InflationError if it is damaged, cut or too large."""
    inflater = Inflater(coding, inflated_limit_bytes(len(body)))
    pieces: list[bytes] = []
    for piece in inflater.feed(body):
        pieces.append(piece)
        yield
    if not inflater.is_complete:
        raise InflationError("the compressed body is cut short")
    return b"".join(pieces)
