"""Marks: a few hashes by which a text is recognised inside another one.

Agents quote: a sub-agent is told what its parent's tool call said, the next task embeds the last answer,
a title is asked for with the user's prompt inside. Quotes change at their edges (tags, labels, blanks,
line ends), so texts are compared as runs of words. A text *leaves* a few marks; a text *probes* for all
marks that it could contain.

A text of five words or more leaves windows of five words, evenly spread. A shorter one leaves itself, and
is only found at the end of a line, where quotes of one phrase stand; a single word is nobody's mark.
"""

import re
from collections.abc import Iterable
from typing import Final

from xxhash import xxh3_64_intdigest

WINDOW: Final = 5
"""Words. Four in a row are boilerplate more often than not."""
MAX_MARKS: Final = 4
MAX_WORDS: Final = 1500
"""Words of one text that are looked at: half from its head, half from its tail."""
_MAX_CHARS: Final = 16 * MAX_WORDS
_MIN_SHORT_CHARS: Final = 8
_MAX_LINES: Final = 200

_WORD: Final = re.compile(r"\w+")


def text_hash(text: str) -> int:
    """Equal for texts that differ in white space alone; 0 for a text without any other."""
    plain = " ".join(text.split())
    return hash_text(plain) if plain else 0


def hash_text(text: str) -> int:
    return xxh3_64_intdigest(text.encode("utf-8", "replace"))


def leave_marks(text: str) -> tuple[int, ...]:
    """The marks by which this text can be recognised, at most `MAX_MARKS`; none if it is too short."""
    words = _words(text)
    count = len(words) - WINDOW + 1
    if count < 1:
        phrase = " ".join(words)
        is_mark = len(words) > 1 and len(phrase) >= _MIN_SHORT_CHARS
        return (hash_text(phrase),) if is_mark else ()
    kept = min(count, MAX_MARKS)
    starts = {round(at * (count - 1) / max(1, kept - 1)) for at in range(kept)}
    return tuple(hash_text(" ".join(words[at : at + WINDOW])) for at in sorted(starts))


def probe(texts: Iterable[str], *, max_words: int = MAX_WORDS) -> frozenset[int]:
    """Every mark that these texts could contain, as far as `max_words` go."""
    found: list[int] = []
    for text in texts:
        words = _words(text)[: max_words + WINDOW]
        max_words -= len(words)
        found += [hash_text(" ".join(words[at : at + WINDOW])) for at in range(len(words) - WINDOW + 1)]
        found += _line_ends(text)
        if max_words <= 0:
            break
    return frozenset(found)


def _line_ends(text: str) -> list[int]:
    """The last two, three and four words of every line."""
    found = []
    for line in _clip(text).splitlines()[:_MAX_LINES]:
        words = _WORD.findall(line[-80:])
        lengths = range(2, min(WINDOW, len(words) + 1))
        found += [hash_text(" ".join(words[-length:])) for length in lengths]
    return found


def _words(text: str) -> list[str]:
    words = _WORD.findall(_clip(text))
    if len(words) <= MAX_WORDS:
        return words
    return words[: MAX_WORDS // 2] + words[-MAX_WORDS // 2 :]


def _clip(text: str) -> str:
    if len(text) <= _MAX_CHARS:
        return text
    return text[: _MAX_CHARS // 2] + "\n" + text[-_MAX_CHARS // 2 :]
