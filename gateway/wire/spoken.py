"""The words of an answer, which become marks when somebody searches for a quote, and not before.

Invariant: whoever looks sees the same marks, whether they are read now or later.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from gateway.domain.request import Manner, Utterance
from gateway.wire.items import argument_texts, canonical_arguments
from gateway.wire.manner import read_manner
from gateway.wire.marks import leave_marks
from gateway.wire.wording import OVERHEAD

MAX_HANDED: Final = 16


class SpokenWords(Utterance):
    """An answer whose text and arguments are at hand."""

    __slots__ = ("_arguments", "_handed", "_handed_sizes", "_manner", "_said", "_size", "_spoken")

    def __init__(self, *, text: int, spoken: str, arguments: Sequence[bytes]) -> None:
        self.text, self.chars = text, len(spoken)
        self._spoken = spoken
        self._arguments = arguments
        self._said: tuple[int, ...] | None = None
        self._manner: Manner | None = None
        self._handed: tuple[tuple[int, ...], ...] | None = None
        self._handed_sizes: tuple[int, ...] = ()
        self._size = self.chars + sum(map(len, arguments)) + OVERHEAD

    @property
    def size(self) -> int:
        return self._size

    @property
    def said(self) -> tuple[int, ...]:
        if self._said is None:
            _ = self.manner
            self._said = leave_marks(self._spoken)
            self._spoken = ""
            self._shrink()
        return self._said

    @property
    def manner(self) -> Manner:
        if self._manner is None:
            self._manner = read_manner(self._spoken, self._arguments)
        return self._manner

    @property
    def handed(self) -> tuple[tuple[int, ...], ...]:
        if self._handed is None:
            self._handed = self._read_arguments()
        return self._handed

    @property
    def handed_sizes(self) -> tuple[int, ...]:
        _ = self.handed
        return self._handed_sizes

    def _read_arguments(self) -> tuple[tuple[int, ...], ...]:
        _ = self.manner
        handed: dict[tuple[int, ...], int] = {}
        for pieces in self._arguments:
            arguments = canonical_arguments(pieces.decode("utf-8", "surrogatepass"))
            some = islice(argument_texts(arguments), MAX_HANDED)
            handed |= {leave_marks(text): len(text) for text in some}
            if len(handed) > MAX_HANDED:
                break
        handed.pop((), None)
        self._handed_sizes = tuple(handed.values())[:MAX_HANDED]
        self._arguments = ()
        self._shrink()
        return tuple(handed)[:MAX_HANDED]

    def _shrink(self) -> None:
        left = len(self._spoken) + sum(map(len, self._arguments))
        self._size = left + OVERHEAD if left else 0
