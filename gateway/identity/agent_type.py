"""The type of an agent: a hash of its system prompt and tools that is the same from run to run.

Prompts hold what changes: the date, a directory, the platform's version, a counter, a list of files. Such
words (with a digit, a slash, a dot in the middle, names of days and months) are taken out, and only the head
of each part is read: what is particular to a run tends to stand at the end. Of the tools the names count, in
whatever order.

Invariants: 0 where there are neither; never raises; reads at most `_HEAD` bytes of each of `_MAX_PARTS`
parts. Called once for each distinct prompt, whose hash is remembered (`transcript.py`).
"""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec import Raw
from xxhash import xxh3_64_intdigest

from gateway.wire.body import read_as

_HEAD: Final = 3_000
# Words.
_KEPT: Final = 150
_MAX_PARTS: Final = 6
_MAX_TOOLS: Final = 256
_TEXT: Final = re.compile(rb'"(?:text|content)"\s*:\s*"((?:[^"\\]|\\.)*)"?')
_ESCAPE: Final = re.compile(rb"\\[nrt]")
_WORD: Final = re.compile(rb"[^\s\"',;:!?()<>`*]+")
_CALENDAR: Final = frozenset(
    b"mon tue wed thu fri sat sun monday tuesday wednesday thursday friday saturday sunday am pm utc gmt jan"
    b" feb mar apr may jun jul aug sep oct nov dec january february march april june july august september"
    b" october november december".split()
)
_CHANGING: Final = re.compile(rb"[\d/\\@_~$#={}\[\]|]|\w[.]\w|[^\x00-\x7f]")


class _Function(msgspec.Struct):
    name: str | None = None


class Tool(msgspec.Struct):
    name: str | None = None
    type: str | None = None
    function: _Function | None = None

    @property
    def called(self) -> str:
        return (self.function or self).name or self.type or ""


TOOL: Final = msgspec.json.Decoder(Tool)


def agent_skeleton(systems: Iterable[Raw], tools: Sequence[Raw]) -> int:
    """`systems`: the system prompt's parts, as JSON came: texts, content blocks or messages."""
    words: list[bytes] = []
    for raw in islice(systems, _MAX_PARTS):
        words += _words(bytes(memoryview(raw)[:_HEAD]))
        words.append(b"|")
    names = sorted({(read_as(TOOL, raw) or Tool()).called for raw in tools[:_MAX_TOOLS]})
    if not names and not any(word != b"|" for word in words):
        return 0
    return xxh3_64_intdigest(b" ".join(words) + b"\n" + " ".join(names).encode("utf-8", "replace"))


def _words(head: bytes) -> list[bytes]:
    if head.startswith((b"{", b"[")):
        head = b" ".join(_TEXT.findall(head))
    plain = _WORD.findall(_ESCAPE.sub(b" ", head))[:-1] or [head[:16]]  # the last one may be cut
    stable = [word.strip(b".-").lower() for word in plain if _CHANGING.search(word) is None]
    return [word for word in stable[:_KEPT] if word and word not in _CALENDAR]
