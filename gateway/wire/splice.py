"""Adding our fields to a JSON body without rewriting it.

The client's bytes go out as they came, up to the brace that closes the outermost object; our fields
follow, then a closing brace. Every backend's parser lets the last of two equal names win, so ours do.

A body that is not valid JSON stays invalid: the comma, quote and letters that we add cannot complete
an unfinished string, array or object. So a client cannot smuggle a field past us by malforming one.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

# A piece of a body to write; a memoryview where copying the client's bytes would be waste.
Chunk = bytes | memoryview

_BLANKS = b" \t\n\r"
_BEGINS = re.compile(rb"[ \t\n\r]*+\{")
_NEAR_BYTES = 64
_OPEN, _CLOSE = b"{}"


def is_object(body: bytes) -> bool:
    end = _rfind_visible(body, len(body))
    return end > 0 and body[end] == _CLOSE and _BEGINS.match(body) is not None


def splice_fields(body: bytes, fields: Mapping[str, Any]) -> list[Chunk]:
    """The body with the fields set, as pieces to be written one after the other.

    Raises ValueError if the body is not an object by its outer bytes.
    """
    if not is_object(body):
        raise ValueError("the body is not a JSON object")
    brace_at = _rfind_visible(body, len(body))
    before_brace_at = _rfind_visible(body, brace_at)
    if not fields:
        return [body]
    ours = msgspec.json.encode(dict(fields))[1:]
    # Right after an opening brace, ours are the first fields; else a comma parts them from the client's.
    separator = b"" if body[before_brace_at] == _OPEN else b","
    return [memoryview(body)[:brace_at], separator + ours]


def _rfind_visible(body: bytes, end: int) -> int:
    """Where the last byte before `end` stands that is not a blank; -1 if there is none."""
    start = max(0, end - _NEAR_BYTES)
    near = body[start:end].rstrip(_BLANKS)
    # Only a body with many blanks in a row is copied to be searched.
    return start + len(near) - 1 if near or end <= 0 else len(body[:end].rstrip(_BLANKS)) - 1
