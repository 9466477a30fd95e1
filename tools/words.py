"""Finds words that the code does without: `python -m tools.words [PATH…]` (`words.txt` beside this has them).

Identifiers are taken apart at their underscores for words in lower case; names with a capital or an
underscore are looked for whole. Exit status 1 if any stands there; each is printed with its place and what is
better.
"""

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parent.parent
_TREES: Final = ("gateway", "engine_ext")
_KINDS: Final = (".py", ".js", ".html")
_WORD: Final = re.compile(r"[A-Za-z]+")


def listed() -> dict[str, str]:
    lines = (Path(__file__).parent / "words.txt").read_text().splitlines()
    return dict(line.split(" → ") for line in lines if line and not line.startswith("#"))


def found(source: str, words: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Line and word, in the order of the source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            parts = {token.string, *filter(str.islower, token.string.split("_"))}
            yield from ((token.start[0], word) for word in parts if word in words)
        elif token.type in (tokenize.STRING, tokenize.COMMENT):
            for at in _WORD.finditer(token.string):
                if (word := at.group().lower()) in words:
                    yield token.start[0] + token.string.count("\n", 0, at.start()), word


def in_text(source: str, words: dict[str, str]) -> Iterator[tuple[int, str]]:
    """As `found`, of what is no Python: words alone, wherever they stand."""
    for number, line in enumerate(source.splitlines(), 1):
        yield from ((number, word) for at in _WORD.finditer(line) if (word := at.group().lower()) in words)


def main(paths: list[str]) -> int:
    words, count = listed(), 0
    names = paths or [f"{tree}/*{kind}" for tree in _TREES for kind in _KINDS]
    listing = subprocess.run(
        ["git", "ls-files", *names], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    for path in filter(lambda each: each.endswith(_KINDS), listing.stdout.split()):
        in_file = found if path.endswith(".py") else in_text
        for line, word in in_file((_ROOT / path).read_text(), words):
            print(f"{path}:{line}: {word} → {words[word]}")
            count += 1
    print(f"{count} words", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
