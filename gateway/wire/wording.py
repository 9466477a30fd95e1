"""The words of a request, which become marks when somebody searches for a quote, and not before.

Most turns are found by an id or by the conversation before them; nobody ever asks for their words. So a
request keeps its raw items for as long as its turn is being identified, and what it asked until marks are
wanted. Marks that were made lately are remembered: clients ask again, and load generators ask the very same
all day.

Invariant: whoever looks sees the same marks, whether they are read now or later.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple

from msgspec import Raw

from gateway.domain.request import NO_WORDS, Words
from gateway.wire.hashing import hash_text
from gateway.wire.items import ASSISTANT, MAX_TEXTS, USER, Item, read_texts
from gateway.wire.marks import MAX_CHARS, is_most, leave_marks, lone_phrases, probe
from gateway.wire.memory import Memory

OVERHEAD: Final = 300
"""Bytes that keeping words takes, beside them."""
SET_OFF: Final = 0.9
_OLD_CHARS: Final = 3600
"""A history is probed less than an opening: most are recognised without it."""
_MAX_PROMPT: Final = 4096
"""Bytes. Of more, marks are made at once."""
_MAX_TEXTS: Final = 8
_MAX_REMEMBERED: Final = 64


_ID: Final = re.compile(r"[\w-]{16,}", re.ASCII)
_MAX_ID_CHARS: Final = 64
_MAX_IDS: Final = 64


class _Texts(NamedTuple):
    """Where the texts stand, all newest first."""

    new: list[int]
    old: list[int]
    is_opening: bool


class Marked:
    """What was asked and probed lately, by the hashes of the items that say it."""

    def __init__(self) -> None:
        self.asked: Memory[tuple[int, ...]] = Memory(_MAX_REMEMBERED)
        self.probes: Memory[tuple[frozenset[int], frozenset[int]]] = Memory(_MAX_REMEMBERED)

    def read_asked(self, key: int, raw: Raw | bytes) -> tuple[int, ...]:
        known = self.asked.get(key)
        if known is None:
            texts = read_texts(raw)
            known = leave_marks(texts[-1]) if texts else ()
            self.asked.put(key, known)
        return known


class RequestWords(Words):
    """The words of a conversation whose items are at hand."""

    def __init__(
        self,
        items: Sequence[Raw],
        raws: Sequence[int],
        asked: int,
        read: Callable[[Sequence[int], Sequence[Raw], int], Item],
        marked: Marked,
    ) -> None:
        self._items = items
        self._raws = raws
        self._asked = asked
        """How many items there are up to the newest that a user wrote, behind all of the model's."""
        self._read = read
        self._marked = marked

    @property
    def ids(self) -> tuple[int, ...]:
        words = [word for text in self.texts for word in reversed(_ID.findall(text[-MAX_CHARS:]))]
        found = [word for word in words if len(word) <= _MAX_ID_CHARS and not word.isalpha()]
        return tuple(map(hash_text, dict.fromkeys(found[:_MAX_IDS])))

    def share(self, marks: tuple[int, ...], size: int) -> float:
        found = [text for text in self.texts if is_most(probe([text]), marks)]
        return share_of(
            [len(text) for text in found],
            size,
            is_set_off=len(marks) == 1 and any(marks[0] in lone_phrases(text) for text in found),
        )

    def drop(self) -> None:
        self._items = self._raws = ()
        self._asked = 0
        for read in ("_found", "texts"):
            vars(self).pop(read, None)

    def prompt(self) -> Words:
        at = self._asked - 1
        if at < 0:
            return NO_WORDS
        raw = self._items[at]
        if len(memoryview(raw)) > _MAX_PROMPT:
            return Asked(self.asked)
        return Prompt(bytes(raw), self._raws[at], self._marked)

    @property
    def asked(self) -> tuple[int, ...]:
        at = self._asked - 1
        if at < 0:
            return ()
        return self._marked.read_asked(self._raws[at], self._items[at])

    @property
    def new_probes(self) -> frozenset[int]:
        return self._probes()[0]

    @property
    def old_probes(self) -> frozenset[int]:
        return self._probes()[1]

    def _probes(self) -> tuple[frozenset[int], frozenset[int]]:
        found = self._found
        key = hash((len(found.new), *(self._raws[at] for at in (*found.new, *found.old))))
        known = self._marked.probes.get(key)
        if known is None:
            old = probe(self._read_texts(found.old), max_chars=_OLD_CHARS) if found.old else frozenset()
            new = probe(self.texts, max_chars=MAX_CHARS if found.is_opening else _OLD_CHARS)
            known = new, old
            self._marked.probes.put(key, known)
        return known

    @cached_property
    def _found(self) -> _Texts:
        new: list[int] = []
        end = 0
        for at in range(len(self._raws) - 1, -1, -1):
            item = self._item(at)
            if item.kind == ASSISTANT:
                end = at + 1
                break
            if item.kind == USER and item.text and len(new) < _MAX_TEXTS:
                new.append(at)
        if not new and end == 0:  # some agents say everything in the system prompt
            new = list(range(len(self._raws) - 1, -1, -1))[:_MAX_TEXTS]
        return _Texts(new, self._written(end), end == 0)

    def _written(self, before: int) -> list[int]:
        """Items with texts before this one, newest first; none if the newest made calls.

        For then the ids of its calls are known, or nothing is.
        """
        found: list[int] = []
        for at in range(before - 1, -1, -1):
            item = self._item(at)
            if item.has_calls and at == before - 1:
                break
            if item.kind in (USER, ASSISTANT) and item.text:
                found.append(at)
                if len(found) == _MAX_TEXTS:
                    break
        return found

    def _item(self, at: int) -> Item:
        return self._read(self._raws, self._items, at)

    @cached_property
    def texts(self) -> Sequence[str]:
        return self._read_texts(self._found.new)

    def _read_texts(self, places: list[int]) -> list[str]:
        texts = (text for at in places for text in reversed(read_texts(self._items[at])))
        return list(islice(texts, MAX_TEXTS))


class Asked(Words):
    """Marks that are known already."""

    __slots__ = ("_asked",)

    def __init__(self, asked: tuple[int, ...]) -> None:
        self._asked = asked

    @property
    def asked(self) -> tuple[int, ...]:
        return self._asked


class Prompt(Words):
    """The bytes of what was asked."""

    __slots__ = ("_key", "_marked", "_raw")

    def __init__(self, raw: bytes, key: int, marked: Marked) -> None:
        self._raw = raw
        self._key = key
        self._marked = marked

    @property
    def size(self) -> int:
        return len(self._raw) + OVERHEAD

    @property
    def asked(self) -> tuple[int, ...]:
        return self._marked.read_asked(self._key, self._raw)


def share_of(texts_chars: Sequence[int], size: int, *, is_set_off: bool) -> float:
    """The largest share of texts of these lengths.

    Nearly all, if it stands alone on a line: templates set off what they are filled with.
    """
    best = max((min(1.0, size / chars) for chars in texts_chars), default=0.0)
    return max(best, SET_OFF) if is_set_off else best
