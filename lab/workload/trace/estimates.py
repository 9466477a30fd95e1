"""Tokens where a corpus has text alone."""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

BYTES_PER_TOKEN: Final = 4.0
"""English prose has 4 to 5, code and JSON 3 to 4."""
FRAME_TOKENS: Final = 4
"""What a chat template puts around a message."""
_NOT_TEXT: Final = frozenset({"role", "id", "type", "tool_call_id", "name", "t", "is_error"})


def text_bytes(value: Any) -> int:
    """Of all texts in it, at whatever depth; not of ids and such."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, Mapping):
        return sum(text_bytes(part) for name, part in value.items() if name not in _NOT_TEXT)
    if isinstance(value, list | tuple):
        return sum(text_bytes(part) for part in value)
    return 0 if value is None else len(msgspec.json.encode(value))


def message_tokens(message: Mapping[str, Any]) -> int:
    return FRAME_TOKENS + math.ceil(text_bytes(message) / BYTES_PER_TOKEN)
