"""Pictures, sound and documents within a body, as base64: an engine makes tokens of what they show, not of
their letters. Long strings are found by looks at a body far apart, which take some 30 µs for 400 kB."""

import re
from typing import Final

COUNTS_AS: Final = 5_200
"""Bytes of text, about 1,300 tokens. A picture of 1,000 by 1,000 pixels takes some 1,280 of Qwen2.5-VL (28 by
28 pixels each), 1,334 of Claude (750 pixels each), 765 of GPT-4o (85, and 170 for each of four tiles)."""
_LETTERS: Final = re.compile(rb"[A-Za-z0-9+/_\\-]{64}")
_APART: Final = COUNTS_AS - 64
_KEY: Final = re.compile(rb'"(?:url|image_url|data|file_data|result)"\s{0,8}:\s{0,8}\Z')
_LONGEST_KEY: Final = 32


def media_bytes(body: bytes) -> int:
    """Bytes of its media, beyond what these count as."""
    found, begin, at = 0, 0, _APART
    while at < len(body):
        if _LETTERS.match(body, at) is not None:
            quote, end = body.rfind(b'"', begin, at), body.find(b'"', at)
            if end < 0:
                break
            if quote >= 0 and _KEY.search(body, max(0, quote - _LONGEST_KEY), quote) is not None:
                found += max(0, end - quote - 1 - COUNTS_AS)
            begin = at = end
        at += _APART
    return found
