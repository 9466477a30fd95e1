"""What a prompt begins with, as short hashes: its tools and its system prompt, in their order.

Invariants: `_MAX_MARKS` cache marks of a text are left out, as engines do not see them; at most `_MAX_TOOLS`
tools and `_MAX_SEGMENTS` segments are hashed one by one, the rest as one.
Called once for each distinct beginning, whose hashes are remembered (`transcript.py`).
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Raw

from gateway.wire.hashing import digest_all

SEGMENT_BYTES: Final = 256
HASH_BYTES: Final = 4
_MAX_SEGMENTS: Final = 64
_MAX_TOOLS: Final = 64
# Anthropic's API takes four.
_MAX_MARKS: Final = 16
_MARK_NAME: Final = b'"cache_control"'
_MARK_BYTES: Final = 256
# A comma, and blanks.
_BEFORE_MARK_BYTES: Final = 16
_MARK: Final = re.compile(rb'(?:,\s*)?"cache_control"\s*:\s*(?:\{[^{}]{0,200}\}|null)')


def head_of(systems: Iterable[Raw], tools: Sequence[Raw]) -> tuple[bytes, bytes]:
    """Of the tools, and of the segments of the system prompt's parts."""
    each = [_without_marks(bytes(raw)) for raw in tools[:_MAX_TOOLS]]
    each += [b",".join(map(bytes, tools[_MAX_TOOLS:]))] if len(tools) > _MAX_TOOLS else []
    text = _without_marks(b",".join(map(bytes, systems)))
    cut = SEGMENT_BYTES * _MAX_SEGMENTS
    segments = [text[at : at + SEGMENT_BYTES] for at in range(0, min(len(text), cut), SEGMENT_BYTES)]
    segments += [text[cut:]] if len(text) > cut else []
    return short_hashes(digest_all(each)), short_hashes(digest_all(segments))


def _without_marks(text: bytes) -> bytes:
    pieces, done = [], 0
    for _ in range(_MAX_MARKS):
        at = text.find(_MARK_NAME, done)  # the expression alone would take a tenth of a second for 8 MiB
        if at < 0:
            break
        mark = _MARK.search(text, max(done, at - _BEFORE_MARK_BYTES), at + _MARK_BYTES)
        end = at + len(_MARK_NAME)
        pieces.append(text[done : mark.start() if mark else end])
        done = mark.end() if mark else end
    return b"".join((*pieces, text[done:]))


def short_hashes(hashes: Iterable[int]) -> bytes:
    short = bytearray()
    for each in hashes:
        short += (each & 0xFFFF_FFFF).to_bytes(HASH_BYTES, "big")
    return bytes(short)
