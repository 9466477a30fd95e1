"""Where a JSON object ends in text that comes in pieces."""

import re
from typing import Final

# Of a string, what is left up to its closing quote.
_STRING: Final = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
# What is up to the next brace, or to the start of a string that does not end here.
_BETWEEN: Final = re.compile(r'(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)


class ObjectEnd:
    """Finds where a JSON object ends in text that comes in pieces. Keeps no text.

    Text that begins with something else than an object never ends.
    """

    __slots__ = ("_depth", "_is_escaped", "_is_in_string", "_is_over")

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        # The last piece ended behind a backslash.
        self._is_escaped = False
        self._is_over = False

    @property
    def is_inside(self) -> bool:
        return self._depth > 0

    def feed(self, piece: str) -> bool:
        if self._is_over or not piece:
            return False
        at, end = 0, len(piece)
        if not self._depth:
            at = end - len(piece.lstrip())
            if at < end and piece[at] != "{":
                self._is_over = True
                return False
        elif self._is_escaped:
            self._is_escaped = False
            at = 1
        while True:
            pattern = _STRING if self._is_in_string else _BETWEEN
            at = pattern.match(piece, at).end()  # type: ignore[union-attr]  # both match anything
            if at == end:
                return False
            mark = piece[at]
            at += 1
            if mark == '"':
                self._is_in_string = not self._is_in_string
            elif mark == "{":
                self._depth += 1
            elif mark == "}":
                self._depth -= 1
                if not self._depth:
                    self._is_over = True
                    return True
            else:  # a backslash at the end of the piece
                self._is_escaped = True
                return False
