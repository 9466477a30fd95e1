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
    __slots__ = ("_kept",)

    def __init__(self, hashes: WordHashes) -> None:
        self._kept = hashes

    def prompt(self) -> Words:
        return Asked(self._kept.asked)

    @property
    def ids(self) -> tuple[int, ...]:
        return self._kept.ids

    def share(self, marks: tuple[int, ...], size: int) -> float:
        found = [text for text in self._kept.texts if is_most(text.marks, marks)]
        return share_of(
            [text.chars for text in found],
            size,
            is_set_off=len(marks) == 1 and any(marks[0] in text.alone for text in found),
        )

    @property
    def asked(self) -> tuple[int, ...]:
        return self._kept.asked

    @property
    def new_probes(self) -> frozenset[int]:
        return self._kept.new

    @property
    def old_probes(self) -> frozenset[int]:
        return self._kept.old


class HashedUtterance(Utterance):
    __slots__ = ("_kept",)

    def __init__(self, hashes: UtteranceHashes) -> None:
        super().__init__(text=hashes.text, chars=hashes.chars)
        self._kept = hashes

    @property
    def said(self) -> tuple[int, ...]:
        return self._kept.said

    @property
    def handed(self) -> tuple[tuple[int, ...], ...]:
        return self._kept.handed

    @property
    def handed_sizes(self) -> tuple[int, ...]:
        return self._kept.handed_sizes

    @property
    def manner(self) -> Manner:
        return self._kept.manner


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
