"""Marks: a few hashes by which a text is recognised inside another one.

Agents quote: a sub-agent is told what its parent's tool call said, the next task embeds the last answer,
a title is asked for with the user's prompt inside. Quotes change at their edges (tags, labels, blanks,
line ends), so texts are compared as runs of words. A text *leaves* a few marks; a text *probes* for all
marks that it could contain.

A text of five words or more leaves windows of five words, evenly spread. A shorter one leaves itself, and
is only found as the end of a line, where quotes of one phrase stand; a single word is nobody's mark.

Of a long text, the head and the tail are looked at. Few characters separate words, so texts are cut into
words as bytes: several times as fast as a regular expression.
"""

import re
from collections.abc import Iterable, Set
from functools import lru_cache
from typing import Final

from gateway.wire.hashing import inner_digests

WINDOW: Final = 5
"""Words. Four in a row are boilerplate more often than not."""
MAX_MARKS: Final = 4
MAX_CHARS: Final = 9000
"""Characters of one text that are looked at: half from its head, half from its tail."""
_MIN_SHORT_CHARS: Final = 8
_MAX_LINES: Final = 200
_MAX_LINE_CHARS: Final = 80
_SHORT_CHARS: Final = 160
_FEW_BYTES: Final = 600
_WINDOW_BYTES: Final = 160
"""Five words hardly ever take more."""

_WORD: Final = re.compile(r"\w+")
_TAG: Final = re.compile(r"<[^<>]{1,80}>")
_WORDS_AND_BLANKS: Final = bytes(
    at if at == ord("_") or chr(at).isalnum() else 32 for at in range(128)
) + bytes(range(128, 256))


def leave_marks(text: str) -> tuple[int, ...]:
    """The marks by which this text can be recognised, at most `MAX_MARKS`; none if it is too short."""
    plain = _plain(_clip(text))
    if len(plain) > _FEW_BYTES:
        return _spread(plain)
    words = plain.split()
    count = len(words) - WINDOW + 1
    if count < 1:
        is_mark = len(words) > 1 and sum(map(len, words)) + len(words) - 1 >= _MIN_SHORT_CHARS
        return (_mark(words),) if is_mark else ()
    return tuple([_mark(words[at : at + WINDOW]) for at in _evenly(count)])


@lru_cache(_FEW_BYTES)
def _evenly(count: int) -> tuple[int, ...]:
    kept = min(count, MAX_MARKS)
    return tuple(sorted({round(at * (count - 1) / max(1, kept - 1)) for at in range(kept)}))


def is_most(hits: Set[int], marks: tuple[int, ...]) -> bool:
    """Whether that is all of a short text, half of a long one: quotes are shortened."""
    return bool(marks) and 2 * sum(mark in hits for mark in marks) >= len(marks) + (len(marks) < 4)


def probe(texts: Iterable[str], *, max_chars: int = MAX_CHARS) -> frozenset[int]:
    """Every mark that these texts could contain, as far as `max_chars` go."""
    found: list[int] = []
    for text in texts:
        clipped = _clip(text)[: max(max_chars, _WINDOW_BYTES)]
        max_chars -= len(clipped)
        words = inner_digests(_plain(clipped).split())
        found += map(hash, zip(words, words[1:], words[2:], words[3:], words[4:], strict=False))
        found += _phrases(clipped)
        if max_chars <= 0:
            break
    return frozenset(found)


def _phrases(text: str) -> list[int]:
    """What stands alone on a line, or behind a label there; of a short text, also the ends of its lines."""
    found = []
    is_short = len(text) <= _SHORT_CHARS
    for line in text.splitlines()[:_MAX_LINES]:
        if len(line) > 2 * _MAX_LINE_CHARS:
            continue
        for words in _lines_of(line):
            if 2 <= len(words) < WINDOW:
                found.append(_mark(words))
            if is_short:
                found += [_mark(words[-length:]) for length in range(2, min(WINDOW, len(words)))]
    return found


def lone_phrases(text: str) -> frozenset[int]:
    return frozenset(
        _mark(words) for line in text.splitlines() for words in _lines_of(line) if len(words) <= WINDOW
    )


def _lines_of(line: str) -> list[list[bytes]]:
    if "<" in line:
        line = _TAG.sub(" ", line)
    if len(line) > _MAX_LINE_CHARS:
        return []
    words = _plain(line).split()
    if not words:
        return []
    if words[0].isdigit():
        del words[0]
    _, colon, behind = line.partition(": ")
    return [words, _plain(behind).split()] if colon else [words]


def _mark(words: list[bytes]) -> int:
    return hash(tuple(inner_digests(words)))


def _spread(plain: bytes) -> tuple[int, ...]:
    last = plain[-_WINDOW_BYTES:].split()[1:][-WINDOW:]
    windows = [plain[:_WINDOW_BYTES].split()[:-1][:WINDOW]]
    for at in range(1, MAX_MARKS - 1):
        start = at * (len(plain) - _WINDOW_BYTES) // (MAX_MARKS - 1)
        windows.append(plain[start : start + _WINDOW_BYTES].split()[1:-1][:WINDOW])
    return tuple(dict.fromkeys(_mark(words) for words in (*windows, last) if len(words) == WINDOW))


def _plain(text: str) -> bytes:
    if text.isascii():
        return text.encode().translate(_WORDS_AND_BLANKS)
    return " ".join(_WORD.findall(text)).encode("utf-8", "replace")


def _clip(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    return text[: MAX_CHARS // 2] + "\n" + text[-MAX_CHARS // 2 :]
