"""Words as nothing but hashes: what a recording keeps of what was said.

Runs of words are recorded only where that is asked for: overlapping ones let who knows the key, or has texts
of his own recorded, find a text word by word. They leave the process keyed.

Invariant: with all words, whoever asks gets the answers that the words themselves would have given, except
for `size`: they are small, and their marks are other numbers.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.domain.request import NO_MANNER, Manner, Utterance, Words
from gateway.wire.hashing import keyed
from gateway.wire.marks import is_most, lone_phrases, probe
from gateway.wire.wording import Asked, share_of


class TextHashes(msgspec.Struct, frozen=True, array_like=True):
    """One of the new texts."""

    chars: int
    marks: frozenset[int]
    alone: frozenset[int]
    """Marks of the phrases that stand alone on a line."""


class WordHashes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The words of a request."""

    asked: tuple[int, ...] = ()
    new: frozenset[int] = frozenset()
    old: frozenset[int] = frozenset()
    ids: tuple[int, ...] = ()
    texts: tuple[TextHashes, ...] = ()


class UtteranceHashes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The words of an answer."""

    text: int = 0
    chars: int = 0
    said: tuple[int, ...] = ()
    handed: tuple[tuple[int, ...], ...] = ()
    handed_sizes: tuple[int, ...] = ()
    manner: Manner = NO_MANNER


class HashedWords(Words):
    __slots__ = ("_texts", "asked", "ids", "new_probes", "old_probes")
    asked: tuple[int, ...]
    ids: tuple[int, ...]
    new_probes: frozenset[int]
    old_probes: frozenset[int]

    def __init__(self, hashes: WordHashes) -> None:
        self.asked, self.ids, self._texts = hashes.asked, hashes.ids, hashes.texts
        self.new_probes, self.old_probes = hashes.new, hashes.old

    def prompt(self) -> Words:
        return Asked(self.asked)

    def share(self, marks: tuple[int, ...], size: int) -> float:
        found = [text for text in self._texts if is_most(text.marks, marks)]
        return share_of(
            [text.chars for text in found],
            size,
            is_set_off=len(marks) == 1 and any(marks[0] in text.alone for text in found),
        )


class HashedUtterance(Utterance):
    __slots__ = ("handed", "handed_sizes", "manner", "said")
    said: tuple[int, ...]
    handed: tuple[tuple[int, ...], ...]
    handed_sizes: tuple[int, ...]
    manner: Manner

    def __init__(self, hashes: UtteranceHashes) -> None:
        for name in UtteranceHashes.__struct_fields__:
            setattr(self, name, getattr(hashes, name))


def hash_words(value: Any) -> Any:
    """An `enc_hook` of msgspec: words on their way into a recording, which leaves out runs of them."""
    if isinstance(value, Words):
        return WordHashes()
    if isinstance(value, Utterance):
        return UtteranceHashes(text=value.text, chars=value.chars, manner=value.manner)
    raise NotImplementedError(f"{type(value).__name__} is not recorded")


def hash_all_words(value: Any) -> Any:
    if isinstance(value, Words):
        texts = [
            TextHashes(len(text), frozenset(_keyed(probe([text]))), frozenset(_keyed(lone_phrases(text))))
            for text in value.texts
        ]
        return WordHashes(
            asked=_keyed(value.asked),
            new=frozenset(_keyed(value.new_probes)),
            old=frozenset(_keyed(value.old_probes)),
            ids=value.ids,
            texts=tuple(texts),
        )
    if isinstance(value, Utterance):
        return UtteranceHashes(
            text=value.text,
            chars=value.chars,
            said=_keyed(value.said),
            handed=tuple(map(_keyed, value.handed)),
            handed_sizes=value.handed_sizes,
            manner=value.manner,
        )
    return hash_words(value)


def _keyed(marks: Iterable[int]) -> tuple[int, ...]:
    return tuple(map(keyed, marks))


def words_of_hashes(kind: type, value: Any) -> Any:
    """A `dec_hook` of msgspec: words on their way out of a recording."""
    if kind is Words:
        return HashedWords(msgspec.convert(value, WordHashes))
    if kind is Utterance:
        return HashedUtterance(msgspec.convert(value, UtteranceHashes))
    raise NotImplementedError(f"{kind.__name__} is not recorded")
