"""Header blocks of HTTP/2 as a server reads them (pure).

Source: RFC 7541; the tables are its appendices A and B.

Invariants: what a block swells to is bounded by `MAX_BYTES`; a block that refers to no earlier one is read
once, however often it comes: a client that follows our settings sends the same for each stream.
"""

from collections import deque
from functools import lru_cache
from typing import Final

MAX_BYTES: Final = 64 << 10
"""Of names and values, each with `_BESIDE` (RFC 9113 §10.5.1)."""
_TABLE_BYTES: Final = 4096
"""Of the dynamic table, before a client knows that we want none (RFC 9113 §6.5.2)."""
_BESIDE: Final = 32
"""Bytes that an entry counts for beside its name and value (§4.1)."""
_MAX_REMEMBERED: Final = 64
"""Blocks; those of one client differ by method, and perhaps by a deadline."""
_MAX_REMEMBERED_BYTES: Final = 1 << 10
"""Of a block; Envoy's has about 200."""
_MAX_INTEGER: Final = 1 << 24

Fields = tuple[tuple[bytes, bytes], ...]

_STATIC: Final[Fields] = (
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"),
    (b":path", b"/index.html"), (b":scheme", b"http"), (b":scheme", b"https"), (b":status", b"200"),
    (b":status", b"204"), (b":status", b"206"), (b":status", b"304"), (b":status", b"400"),
    (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"), (b"accept-language", b""), (b"accept-ranges", b""),
    (b"accept", b""), (b"access-control-allow-origin", b""), (b"age", b""), (b"allow", b""),
    (b"authorization", b""), (b"cache-control", b""), (b"content-disposition", b""),
    (b"content-encoding", b""), (b"content-language", b""), (b"content-length", b""),
    (b"content-location", b""), (b"content-range", b""), (b"content-type", b""), (b"cookie", b""),
    (b"date", b""), (b"etag", b""), (b"expect", b""), (b"expires", b""), (b"from", b""), (b"host", b""),
    (b"if-match", b""), (b"if-modified-since", b""), (b"if-none-match", b""), (b"if-range", b""),
    (b"if-unmodified-since", b""), (b"last-modified", b""), (b"link", b""), (b"location", b""),
    (b"max-forwards", b""), (b"proxy-authenticate", b""), (b"proxy-authorization", b""), (b"range", b""),
    (b"referer", b""), (b"refresh", b""), (b"retry-after", b""), (b"server", b""), (b"set-cookie", b""),
    (b"strict-transport-security", b""), (b"transfer-encoding", b""), (b"user-agent", b""), (b"vary", b""),
    (b"via", b""), (b"www-authenticate", b""),
)  # fmt: skip

_BITS: Final = (
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26, 30,
)  # fmt: skip
"""How long the Huffman code of each byte is, the last that of the end. The code is canonical: codes of one
length follow each other in the order of what they stand for, behind the shorter ones."""
_END: Final = 256


class HpackError(ValueError):
    """The block cannot be read; nor can any that comes later."""


class Decoder:
    """Of one connection."""

    def __init__(self) -> None:
        self._table: deque[tuple[bytes, bytes]] = deque()
        """The newest first."""
        self._used = 0
        self._most = _TABLE_BYTES
        self._known: dict[bytes, Fields] = {}

    def decode(self, block: bytes) -> Fields:
        """Raises HpackError."""
        is_first = not self._table
        if is_first and (known := self._known.get(block)) is not None:
            return known
        most = self._most
        try:
            fields = self._read(block)
        except IndexError:
            raise HpackError("a block that is cut") from None
        if is_first and not self._table and self._most == most and len(block) <= _MAX_REMEMBERED_BYTES:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            self._known[block] = fields
        return fields

    def _read(self, block: bytes) -> Fields:
        fields: list[tuple[bytes, bytes]] = []
        at, left = 0, MAX_BYTES
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                field = self._entry(index)
            elif first & 0xE0 == 0x20:
                size, at = _integer(block, at, 5)
                if fields or size > _TABLE_BYTES:
                    raise HpackError("a table of another size")
                self._most = size
                self._shrink()
                continue
            else:
                is_kept = bool(first & 0x40)
                index, at = _integer(block, at, 6 if is_kept else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                field = name, value
                if is_kept:
                    self._keep(field)
            left -= _size(field)
            if left < 0:
                raise HpackError("too many headers")
            fields.append(field)
        return tuple(fields)

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if not 0 < index <= len(_STATIC) + len(self._table):
            raise HpackError("no such header")
        return _STATIC[index - 1] if index <= len(_STATIC) else self._table[index - len(_STATIC) - 1]

    def _keep(self, field: tuple[bytes, bytes]) -> None:
        self._table.appendleft(field)
        self._used += _size(field)
        self._shrink()

    def _shrink(self) -> None:
        while self._used > self._most:
            self._used -= _size(self._table.pop())


def _size(field: tuple[bytes, bytes]) -> int:
    return len(field[0]) + len(field[1]) + _BESIDE


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """The value that begins in the low `bits` of a byte, and where it ends (§5.1)."""
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value == most:
        shift, more = 0, 0x80
        while more & 0x80:
            more = block[at]
            value += (more & 0x7F) << shift
            shift += 7
            at += 1
            if value > _MAX_INTEGER or shift > 28:
                raise HpackError("a number that is too large")
    return value, at


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    is_coded = bool(block[at] & 0x80)
    length, at = _integer(block, at, 7)
    if at + length > len(block):
        raise HpackError("a block that is cut")
    told = bytes(block[at : at + length])
    return _unpacked(told) if is_coded else told, at + length


def _codes() -> dict[tuple[int, int], int]:
    """By length and code what it stands for."""
    codes, code, before = {}, 0, 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(_BITS)):
        code <<= length - before
        codes[length, code] = symbol
        code, before = code + 1, length
    return codes


_CODES: Final = _codes()


@lru_cache(_MAX_REMEMBERED)
def _unpacked(coded: bytes) -> bytes:
    """Huffman's code taken away (§5.2)."""
    told, code, length = bytearray(), 0, 0
    for byte in coded:
        for bit in (7, 6, 5, 4, 3, 2, 1, 0):
            code, length = code << 1 | byte >> bit & 1, length + 1
            symbol = _CODES.get((length, code))
            if symbol is not None:
                if symbol == _END:
                    raise HpackError("the end of a string within it")
                told.append(symbol)
                code, length = 0, 0
    if length > 7 or code != (1 << length) - 1:
        raise HpackError("a string that is cut")
    return bytes(told)
