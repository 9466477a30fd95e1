"""What a prompt begins with, as short hashes: its tools and its system prompt, in their order.

Invariants: what a cache does not see (marks of where it is to be cut) is left out; at most `_MAX_TOOLS` tools
and `_MAX_SEGMENTS` segments are told apart, what is behind them counts as one. Called once for each distinct
beginning, whose hashes are remembered (`transcript.py`).
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
_MARK: Final = re.compile(rb'(?:,\s*)?"cache_control"\s*:\s*(?:\{[^{}]{0,200}\}|null)')


def head_of(systems: Iterable[Raw], tools: Sequence[Raw]) -> tuple[bytes, bytes]:
    """Of the tools, and of the segments of the system prompt's parts."""
    each = [_MARK.sub(b"", bytes(raw)) for raw in tools[:_MAX_TOOLS]]
    each += [b",".join(map(bytes, tools[_MAX_TOOLS:]))] if len(tools) > _MAX_TOOLS else []
    text = _MARK.sub(b"", b",".join(map(bytes, systems)))
    cut = SEGMENT_BYTES * _MAX_SEGMENTS
    segments = [text[at : at + SEGMENT_BYTES] for at in range(0, min(len(text), cut), SEGMENT_BYTES)]
    segments += [text[cut:]] if len(text) > cut else []
    return short_hashes(digest_all(each)), short_hashes(digest_all(segments))


def short_hashes(hashes: Iterable[int]) -> bytes:
    return b"".join((each & 0xFFFF_FFFF).to_bytes(HASH_BYTES, "big") for each in hashes)
