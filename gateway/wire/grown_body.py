"""Bodies that begin as one before them did: only what is behind that is read.

A conversation's request repeats the one before, with some items more. So of a large body it is remembered
where its conversation began and ended, and a hash of all up to there. The next one that has the same bytes
there is read without the known items: what stands before the conversation, its new items, and what follows.
The known ones are represented by their hashes, and read on access alone.

Invariants: what is read is what reading all of it would give, but for a body that names its conversation
twice; whatever is left out was read as an item before, so no field can hide there; no body is kept, and of
each connection at most `_KEPT_ITEMS` hashes.
"""

import re
from array import array
from collections.abc import Sequence
from typing import Final, overload

import msgspec
from msgspec import Raw

from gateway.wire.body import MAX_ITEMS, MAX_STRUCTURE, UNREADABLE, RequestBody, decode_measured, items_of
from gateway.wire.hashing import digest, digest_all

# A smaller body is read in a few microseconds.
LEAST_BYTES: Final = 16 << 10
# A larger one is measured first.
_MOST_BYTES: Final = MAX_STRUCTURE
# Conversations of one connection: clients have pools of connections, and use them in turns.
_KEPT: Final = 4
# Of all of these together: 16 KiB, and agents' conversations have some hundred.
_KEPT_ITEMS: Final = 2_048
# Before the end of a conversation: their comparison rules out most others without hashing.
_NEAR_BYTES: Final = 32
_OPENINGS: Final = {
    is_responses: re.compile(rb'"%s"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*\Z' % name)
    for is_responses, name in ((False, b"messages"), (True, b"input"))
}
_MAX_OPENING: Final = 64
_BLANKS: Final = b" \t\r\n"


class Items(Sequence[Raw]):
    """The items of a conversation, of which the first were not read."""

    __slots__ = ("_all", "_body", "_is_responses", "_known", "_new", "hashes")

    def __init__(
        self, hashes: list[int], new: Sequence[Raw], body: bytes, known: int, *, is_responses: bool
    ) -> None:
        self.hashes = hashes
        self._new = new
        self._body = body
        self._known = known
        self._is_responses = is_responses
        self._all: Sequence[Raw] = ()

    def __len__(self) -> int:
        return len(self.hashes)

    @overload
    def __getitem__(self, at: int) -> Raw: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Raw]: ...
    def __getitem__(self, at: int | slice) -> Raw | Sequence[Raw]:
        if isinstance(at, int) and at >= self._known:
            return self._new[at - self._known]
        if not self._all:
            fields = decode_measured(self._body, is_responses=self._is_responses)
            self._all = items_of(fields)
        return self._all[at]


class _Beginning(msgspec.Struct, frozen=True):
    """Of a body, up to the end of its conversation."""

    is_responses: bool
    start: int
    end: int
    near: bytes
    hash: int
    separator: bytes
    items: "array[int]"


class GrownBodies:
    """Of one connection."""

    __slots__ = ("_beginnings", "connection")

    def __init__(self) -> None:
        # A name that no other one has, once it is needed.
        self.connection = ""
        # The one that was used last comes last.
        self._beginnings: list[_Beginning] = []

    def decode(self, body: bytes, *, is_responses: bool) -> tuple[RequestBody, Sequence[Raw]] | None:
        """The fields, and the items of the conversation; None if it had better be read as a whole."""
        if not LEAST_BYTES <= len(body) <= _MOST_BYTES:
            return None
        for known in reversed(self._beginnings):
            is_like = known.is_responses is is_responses and body.startswith(
                known.near, known.end - len(known.near)
            )
            if is_like and _hash(body, known.end) == known.hash:
                return self._read_on(body, known)
        return None

    def remember(self, body: bytes, items: Sequence[Raw], *, is_responses: bool) -> Sequence[Raw]:
        """`body` was read as a whole, and these are its items."""
        if not (LEAST_BYTES <= len(body) <= _MOST_BYTES and items):
            return items
        hashes = digest_all(items)
        first = bytes(items[0])
        start = body.find(first)
        separator = b", " if body.startswith(b", ", start + len(first)) else b","
        conversation = separator.join(items)
        opening = _OPENINGS[is_responses].search(body, max(0, start - _MAX_OPENING), start)
        if opening is not None and body.startswith(conversation, start):
            self._keep(body, is_responses, start, start + len(conversation), separator, hashes)
        return Items(hashes, items, body, 0, is_responses=is_responses)

    def _read_on(self, body: bytes, known: _Beginning) -> tuple[RequestBody, Sequence[Raw]] | None:
        rest = body[known.end :].lstrip(_BLANKS)
        has_more = rest.startswith(b",")
        try:
            fields = decode_measured(body[: known.start] + rest[has_more:], is_responses=known.is_responses)
        except UNREADABLE:
            return None
        new = items_of(fields)
        grown = known.separator + known.separator.join(new) if new else b""
        hashes = [*known.items, *digest_all(new)]
        is_right = has_more is bool(new) and body.startswith(grown, known.end)
        if not is_right or len(hashes) > MAX_ITEMS:
            return None
        self._beginnings.remove(known)
        end = known.end + len(grown)
        self._keep(body, known.is_responses, known.start, end, known.separator, hashes)
        return fields, Items(hashes, new, body, len(known.items), is_responses=known.is_responses)

    def _keep(
        self, body: bytes, is_responses: bool, start: int, end: int, separator: bytes, hashes: list[int]
    ) -> None:
        near, items = body[max(0, end - _NEAR_BYTES) : end], array("Q", hashes)
        known = _Beginning(is_responses, start, end, near, _hash(body, end), separator, items)
        self._beginnings.append(known)
        del self._beginnings[:-_KEPT]
        while sum(len(each.items) for each in self._beginnings) > _KEPT_ITEMS:
            del self._beginnings[0]


def _hash(body: bytes, end: int) -> int:
    return digest(memoryview(body)[:end])
