"""Bodies that engines read and a strict reader does not, made readable.

vLLM, like most engines, reads a body with Python's json. Beyond JSON (RFC 8259) that takes a byte order mark,
UTF-16 and UTF-32, NaN and Infinity, halves of surrogate pairs (as escapes or as bytes), and what is nested as
deeply as its stack allows. A strict reader gets a copy in which each of these is replaced by something that
takes as many bytes: a zero, U+FFFD, an empty array or object. The copy is never sent.

Invariants: the work is linear, bounded and in slices; what Python's json reads, a strict reader reads in the
copy, or the body counts as too much to be read.
"""

import codecs
import io
import json
import math
import re
from collections.abc import Generator, Iterator
from typing import Any, Final

from gateway.wire.body import Oversized

# A larger body is not copied.
MAX_BYTES: Final = 2**25
# Replacements, and brackets where it is nested too deeply: more than agents' bodies have, and less than a
# second's work.
MAX_STEPS: Final = 2**16
_PIECE_BYTES: Final = 2**18
# A step takes as long as passing over so many bytes.
_STEP_BYTES: Final = 2**10
_MAX_DEPTH: Final = 64
_QUOTE: Final = ord('"')
_TEXT: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_INSIDE: Final = re.compile(rb"(?:[^\"\\]++|\\.)*+", re.DOTALL)
_TO_NUMBER: Final = re.compile(rb'[^"NI]*+(?:%s[^"NI]*+)*+' % _TEXT, re.DOTALL)
_TO_BRACKET: Final = re.compile(rb'[^"\[\]{}]*+(?:%s[^"\[\]{}]*+)*+' % _TEXT, re.DOTALL)
_LOW: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE: Final = rb"\\(?:[^u]|u(?:[^dD]|[dD](?:[0-7]|[89abAB][0-9a-fA-F]{2}%s)))" % _LOW
# Over whole escapes, so that none is cut where a piece ends.
_TO_HALF: Final = re.compile(rb"[^\\\xed]*+(?:(?:%s|\xed[\x80-\x9f])[^\\\xed]*+)*+" % _ESCAPE, re.DOTALL)
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\xed[\xa0-\xbf][\x80-\xbf]")


_LOOSE: Final = json.JSONDecoder(
    parse_constant=lambda _: None,
    parse_float=lambda text: number if math.isfinite(number := float(text)) else None,
)


def read_loosely(data: bytes) -> tuple[Any, bytes]:
    """The value that an engine's words begin with, however bad their UTF-8 is, and a strict reader's copy of
    it, which is empty if more follows. For little data, as it is read at once and more slowly than others.
    Raises ValueError, or RecursionError."""
    text = data.decode(json.detect_encoding(data), "replace").strip()
    value, end = _LOOSE.raw_decode(text)
    copy = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") if end == len(text) else b""
    return value, copy


def is_utf8(body: bytes) -> bool:
    return json.detect_encoding(body) == "utf-8"


def in_utf8(body: bytes) -> Generator[None, None, bytes]:
    """The same text in UTF-8, without its byte order mark, in slices. Raises UnicodeError, also if another
    one follows: no engine reads that, and nothing that one reads is to be made of it."""
    coding = json.detect_encoding(body)
    if coding == "utf-8":
        return body
    decoder = codecs.getincrementaldecoder(coding)("surrogatepass")
    whole = io.BytesIO()
    for start in range(0, len(body), _PIECE_BYTES):
        end = start + _PIECE_BYTES
        text = decoder.decode(body[start:end], end >= len(body))
        whole.write(text.encode("utf-8", "surrogatepass"))
        yield
    plain = whole.getvalue()
    if plain.startswith(codecs.BOM_UTF8):
        raise UnicodeError("a second byte order mark")
    return plain


def strict_copy(body: bytes, *, is_deep: bool = False) -> Generator[None, None, bytes]:
    """What a strict reader can read instead. Raises ValueError if no engine reads the body, `Oversized` if
    that is not known. `is_deep`: it is nested too deeply."""
    if len(body) > MAX_BYTES:
        raise Oversized("too many bytes")
    copy = bytearray((yield from in_utf8(body)))
    yield from _replacing_halves(copy)
    yield from _replacing_numbers(copy)
    if is_deep:
        yield from _flattening(copy)
    return bytes(copy)


def _replacing_halves(copy: bytearray) -> Generator[None, None, None]:
    for at in _stops(copy, _TO_HALF, b"\\", b"\xed"):
        if at is None:
            yield
            continue
        half = _HALF.match(copy, at)
        if half is None:
            raise ValueError("an escape or a letter that is none")
        copy[at : half.end()] = b"\\ufffd" if copy[at] == ord("\\") else b"\xef\xbf\xbd"


def _replacing_numbers(copy: bytearray) -> Generator[None, None, None]:
    for at in _stops(copy, _TO_NUMBER):
        if at is None:
            yield
        elif copy.startswith(b"NaN", at):
            copy[at : at + 3] = b"0.0"
        elif copy.startswith(b"Infinity", at):
            copy[at : at + 8] = b"0.000000"
        else:
            raise ValueError("a word that is none")


def _flattening(copy: bytearray) -> Generator[None, None, None]:
    depth = opened_at = 0
    for at in _stops(copy, _TO_BRACKET):
        if at is None:
            yield
        elif copy[at] in b"[{":
            depth += 1
            if depth == _MAX_DEPTH:
                opened_at = at + 1
        else:
            if depth == _MAX_DEPTH:
                copy[opened_at:at] = b" " * (at - opened_at)
            depth -= 1


def _stops(copy: bytearray, skip: "re.Pattern[bytes]", *marks: bytes) -> Iterator[int | None]:
    """Where bytes are that `skip` does not pass over, but for quotes and what is between them; None now and
    then, to give way. `marks`: without them, it passes over all."""
    at = work = steps = 0
    is_inside = False
    while at < len(copy):
        stop = _end(_INSIDE, copy, at, b'"', b"\\") if is_inside else _end(skip, copy, at, *marks)
        work += stop - at + _STEP_BYTES
        if stop == at:
            steps += 1
            if steps > MAX_STEPS:
                raise Oversized("too many steps")
            if copy[at] == _QUOTE:
                is_inside = not is_inside
            elif not is_inside:
                yield at
            stop += 1
        at = stop
        if work > _PIECE_BYTES:
            work = 0
            yield None


def _end(pattern: "re.Pattern[bytes]", copy: bytearray, at: int, *marks: bytes) -> int:
    piece_end = min(at + _PIECE_BYTES, len(copy))
    if marks and all(copy.find(mark, at, piece_end) < 0 for mark in marks):
        return piece_end
    found = pattern.match(copy, at, piece_end)
    assert found is not None
    return found.end()
