"""Knowing the head of a message again: equal to one that was read, but for the digits of its length.

On one connection heads hardly differ, so most need not be read. What is known again are the bytes that a
strict parser took, and a length that says in plain decimal what follows. So nothing gets in that the parser
would have read otherwise.
"""

import re
from typing import Final

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?(0|[1-9]\d{0,14})\r\n", re.IGNORECASE)
_LENGTHS: Final = re.compile(rb"\r\ncontent-length[^\r\n]*", re.IGNORECASE)
_UNUSUAL: Final = re.compile(rb"\r\n(?:transfer-encoding|upgrade|expect)[^\r\n:]*:", re.IGNORECASE)
_MAX_BYTES: Final = 8192
_MAX_DIGITS: Final = 15


class KnownHead:
    """The bytes before and after the digits."""

    __slots__ = ("_after", "_after_bytes", "_before", "_before_bytes")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before, after
        self._before_bytes, self._after_bytes = len(before), len(after)

    def body_of(self, data: bytes) -> bytes | None:
        """The body, if these bytes are one whole message with such a head, and nothing besides."""
        found = self.find(data)
        return data[found[0] :] if found is not None and len(data) == sum(found) else None

    def find(self, data: bytes) -> tuple[int, int] | None:
        """Where the body begins and how long it is, if these bytes begin with such a head."""
        if not data.startswith(self._before):
            return None
        at = self._before_bytes
        end = data.find(b"\r", at, at + _MAX_DIGITS + 1)
        digits = data[at:end]
        if end < 0 or not data.startswith(self._after, end) or not digits.isdigit():
            return None
        length = int(digits)
        return (end + self._after_bytes, length) if digits == b"%d" % length else None

    def with_length(self, length: int) -> bytes:
        return b"%s%d%s" % (self._before, length, self._after)


def know_message(message: bytes, body_bytes: int) -> KnownHead | None:
    """For one whole message, as a parser has read it. None if such heads had better be read each time."""
    return know_head(message[: len(message) - body_bytes], body_bytes)


def know_head(head: bytes, body_bytes: int) -> KnownHead | None:
    """The same, where its body comes apart."""
    if len(head) > _MAX_BYTES or head.find(b"\r\n\r\n") != len(head) - 4 or _UNUSUAL.search(head):
        return None
    return around_length(head, body_bytes)


def around_length(lines: bytes, length: int) -> KnownHead | None:
    """The same for some of its lines; None unless exactly one of them is a Content-Length, and says that."""
    found = _LENGTH.search(lines)
    if found is None or found[1] != b"%d" % length or len(_LENGTHS.findall(lines)) != 1:
        return None
    return KnownHead(lines[: found.start(1)], lines[found.end(1) :])
