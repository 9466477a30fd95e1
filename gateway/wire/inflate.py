"""Bounded inflation of gzip and deflate, so that a copy of a compressed body can be read.

Bodies are passed on as they came; only our own copy is inflated. A small body that swells into a huge
one is a known attack, so both the size and the ratio have a limit, and beyond it we read nothing.
"""

import zlib
from collections.abc import Iterator

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
    """Inflates one body, chunk by chunk."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._stream = zlib.decompressobj(_ZLIB_WINDOW if coding == "deflate" else _GZIP_WINDOW)
        self._in_bytes = 0
        self._out_bytes = 0

    @property
    def is_complete(self) -> bool:
        return self._stream.eof

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """What the chunk inflates to, in pieces. Raises InflationError, perhaps after some pieces."""
        if chunk and self._in_bytes == 0 and self._coding == "deflate" and chunk[0] & 0x0F != 8:
            # Some servers send deflate without the zlib wrapper that RFC 9110 §8.4.1.2 asks for.
            self._stream = zlib.decompressobj(_RAW_WINDOW)
        self._in_bytes += len(chunk)
        while chunk:
            piece = self._inflate(chunk)
            self._out_bytes += len(piece)
            limit = min(MAX_INFLATED_BYTES, max(_ANY_SIZE_BYTES, MAX_RATIO * self._in_bytes))
            if self._out_bytes > limit:
                raise InflationError("the body swells beyond the limit")
            if piece:
                yield piece
            chunk = self._stream.unconsumed_tail

    def _inflate(self, chunk: bytes) -> bytes:
        if self._stream.eof:
            raise InflationError("bytes follow the end of the compressed body")
        try:
            piece = self._stream.decompress(chunk, _PIECE_BYTES)
        except zlib.error as error:
            raise InflationError(str(error)) from error
        if self._stream.unused_data:
            raise InflationError("bytes follow the end of the compressed body")
        return piece


def inflate(body: bytes, coding: str) -> bytes:
    """The whole body, inflated. Raises InflationError if it is damaged, cut or too large."""
    inflater = Inflater(coding)
    inflated = b"".join(inflater.feed(body))
    if not inflater.is_complete:
        raise InflationError("the compressed body is cut short")
    return inflated
