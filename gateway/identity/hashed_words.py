"""Answers' words on their way into a recording, and out of it: nothing but hashes."""

from typing import Any

import msgspec

from gateway.domain.request import NO_MANNER, Manner, Utterance


class UtteranceHashes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    text: int = 0
    chars: int = 0
    manner: Manner = NO_MANNER


class HashedUtterance(Utterance):
    __slots__ = ("manner",)
    manner: Manner

    def __init__(self, hashes: UtteranceHashes) -> None:
        super().__init__(text=hashes.text, chars=hashes.chars)
        self.manner = hashes.manner


def hash_words(value: Any) -> Any:
    """An `enc_hook` of msgspec."""
    if isinstance(value, Utterance):
        return UtteranceHashes(text=value.text, chars=value.chars, manner=value.manner)
    raise NotImplementedError(f"{type(value).__name__} is not recorded")


def words_of_hashes(kind: type, value: Any) -> Any:
    """A `dec_hook` of msgspec."""
    if kind is Utterance:
        return HashedUtterance(msgspec.convert(value, UtteranceHashes))
    raise NotImplementedError(f"{kind.__name__} is not recorded")
