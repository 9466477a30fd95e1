"""Bounded inflation of gzip, deflate and zstd.

A small body that swells into a huge one is a known attack, so size has a limit, and for what clients send, so
has the ratio. Nothing is allocated for what a frame states of its size; a zstd window beyond what RFC 9659
allows is refused. gzip members or zstd frames in a row are one body (RFC 1952 §2.2, RFC 8878 §3.1), up to a
number of them: an empty one costs much more than its few bytes.
"""

import io
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final

if sys.version_info >= (3, 14):
    from compression import zstd as zstd  # noqa: PLC0414 - for tests, too
else:
    from backports import zstd as zstd  # noqa: PLC0414 - for tests, too

if TYPE_CHECKING:
    from zlib import _Decompress as _Stream

MAX_INFLATED_BYTES = 64 * 2**20
# Inflated to deflated. Long agent histories reach about 20.
MAX_RATIO = 200
# Twice as many as `bgzip` makes of the largest body.
MAX_MEMBERS: Final = 2048

# Below this, the ratio does not matter.
_ANY_SIZE_BYTES = 2**20

_PIECE_BYTES = 256 * 2**10
# At a time: what follows the end of a member is copied.
_FED_BYTES: Final = 64 * 2**10

_GZIP_WINDOW, _ZLIB_WINDOW, _RAW_WINDOW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_ZSTD_WINDOW: Final[dict[int, int]] = {zstd.DecompressionParameter.window_log_max: 23}

# The content codings that `Inflater` knows.
INFLATABLE = frozenset({"gzip", "x-gzip", "deflate", "zstd"})


class InflationError(ValueError):
    """The bytes are not of that coding, or swell beyond the limits."""


class SwollenError(InflationError):
    """They swell beyond the limits."""


class Inflater:
    """Inflates one body, chunk by chunk, up to a limit."""

    def __init__(self, coding: str, limit_bytes: int = MAX_INFLATED_BYTES) -> None:
        self._coding = coding
        self._stream: _Stream | zstd.ZstdDecompressor | None = None
        self._members = 0
        self._left_bytes = limit_bytes

    @property
    def is_complete(self) -> bool:
        return self._stream is not None and self._stream.eof

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """What the chunk inflates to, in pieces. Raises InflationError, perhaps after some pieces."""
        for start in range(0, len(chunk), _FED_BYTES):
            rest = chunk[start : start + _FED_BYTES]
            is_more = True
            while is_more:
                if self._stream is None or self._stream.eof:
                    if self._stream is not None and not (rest := rest.lstrip(b"\0")):
                        break  # some writers pad with zeros
                    self._stream = self._open(rest)
                piece, rest, is_more = _inflate(self._stream, rest)
                yield piece[: self._left_bytes]
                self._left_bytes -= len(piece)
                if self._left_bytes < 0:
                    raise SwollenError("the body swells beyond the limit")

    def _open(self, chunk: bytes) -> "_Stream | zstd.ZstdDecompressor":
        """For the next member; its first byte distinguishes zlib's wrapper (RFC 1950 §2.2) from bare deflate.

        RFC 9110 §8.4.1.2 requires the wrapper, but some servers leave it out.
        """
        self._members += 1
        if self._members > 1 and self._coding == "deflate":
            raise InflationError("bytes follow the end of the compressed body")
        if self._members > MAX_MEMBERS:
            raise SwollenError("the compressed body has too many parts")
        if self._coding == "zstd":
            return zstd.ZstdDecompressor(options=_ZSTD_WINDOW)
        if self._coding != "deflate":
            return zlib.decompressobj(_GZIP_WINDOW)
        return zlib.decompressobj(_ZLIB_WINDOW if chunk[0] & 0x0F == 8 else _RAW_WINDOW)


def _inflate(stream: "_Stream | zstd.ZstdDecompressor", chunk: bytes) -> tuple[bytes, bytes, bool]:
    try:
        piece = stream.decompress(chunk, _PIECE_BYTES)
    except (zlib.error, zstd.ZstdError) as error:
        raise InflationError(str(error)) from error
    if stream.eof:
        return piece, stream.unused_data, bool(stream.unused_data)
    if isinstance(stream, zstd.ZstdDecompressor):
        return piece, b"", not stream.needs_input
    # A full piece may leave some output behind, even when all input is used.
    return piece, stream.unconsumed_tail, bool(stream.unconsumed_tail) or len(piece) == _PIECE_BYTES


def inflating(body: bytes, coding: str, take: Callable[[int], None]) -> Generator[None, None, bytes]:
    """The whole body, inflated, in slices. `take` is called before so many more bytes of it are kept. Raises
    InflationError if it is damaged, cut or too large, and what `take` raises."""
    limit_bytes = min(MAX_INFLATED_BYTES, max(_ANY_SIZE_BYTES, MAX_RATIO * len(body)))
    inflater = Inflater(coding, limit_bytes)
    whole = io.BytesIO()  # which gives away what it holds, where a join would copy it all at once
    for piece in inflater.feed(body):
        take(len(piece))
        whole.write(piece)
        yield
    if not inflater.is_complete:
        raise InflationError("the compressed body is cut short")
    return whole.getvalue()
