"""Knowing the head of a request again: equal to one that was read, but for the digits of its length.

Heads of one client hardly differ, so most need not be read. Only bytes that a strict parser
accepted before match, with a length in plain decimal, which the parser would read in the same way.
"""

import re
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?(0|[1-9]\d{0,14})\r\n", re.IGNORECASE)
_LENGTHS: Final = re.compile(rb"\r\ncontent-length[^\r\n]*", re.IGNORECASE)
_UNUSUAL: Final = re.compile(rb"\r\n(?:transfer-encoding|upgrade|expect)[^\r\n:]*:", re.IGNORECASE)
_MAX_BYTES: Final = 8192
_MAX_DIGITS: Final = 15
_MAX_KNOWN: Final = 256


class KnownHead(NamedTuple):
    """The bytes before and after the digits."""

    before: bytes
    after: bytes

    def find(self, data: bytes) -> tuple[int, int] | None:
        """Where the body begins and how long it is, if these bytes begin with such a head."""
        if not data.startswith(self.before):
            return None
        at = len(self.before)
        end = data.find(b"\r", at, at + _MAX_DIGITS + 1)
        digits = data[at:end]
        if end < 0 or not data.startswith(self.after, end) or not digits.isdigit():
            return None
        length = int(digits)
        return (end + len(self.after), length) if digits == b"%d" % length else None


class KnownHeads(Generic[T]):
    """What was read of heads, for all connections: by client address and the bytes around the digits."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes, bytes], tuple[KnownHead, T]] = {}

    def find(self, peer: str, data: bytes) -> tuple[KnownHead, T] | None:
        end = data.find(b"\r\n\r\n", 0, _MAX_BYTES) + 4
        found = _LENGTH.search(data, 0, end) if end > 3 else None
        return found and self._known.get((peer, data[: found.start(1)], data[found.end(1) : end]))

    def add(self, peer: str, known: KnownHead, read: T) -> None:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[peer, known.before, known.after] = known, read


def know_head(head: bytes, body_bytes: int) -> KnownHead | None:
    """For the head of a message as a parser has read it. None if such heads had better be read each time."""
    if len(head) > _MAX_BYTES or head.find(b"\r\n\r\n") != len(head) - 4 or _UNUSUAL.search(head):
        return None
    found = _LENGTH.search(head)
    if found is None or found[1] != b"%d" % body_bytes or len(_LENGTHS.findall(head)) != 1:
        return None
    return KnownHead(head[: found.start(1)], head[found.end(1) :])
