"""Finds long sentences, and the words that the project does without, in its pages: `python -m tools.prose
[PATH…]`.

A sentence ends at a full stop. Code, tables, pages that a program writes and fragments of the changelog are
left out. Exit status 1 if anything is found; each is printed with its page.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.words import in_text, listed

_ROOT: Final = Path(__file__).parent.parent
MOST_WORDS: Final = 28
_PAGES: Final = ("*.md", ":!newsfragments", ":!docs/design/results.md")
_GENERATED: Final = "<!-- Written by `python -m tools."
_LEFT_OUT: Final = re.compile(r"^```.*?^```|<!--.*?-->|^ {4,}.*?$", re.MULTILINE | re.DOTALL)
_NO_PROSE: Final = ("|", "#", "<", "---", "!!!")
_ITEM: Final = re.compile(r"^(?:[-*]|\d+\.) ")
_END: Final = re.compile(r"(?<=[.!?])\**\s+")
_WORD: Final = re.compile(r"\w[\w'’.,-]*")


def sentences(page: str) -> Iterator[str]:
    paragraph: list[str] = []
    for line in [*map(str.strip, _LEFT_OUT.sub("", page).splitlines()), ""]:
        if not line or line.startswith(_NO_PROSE) or _ITEM.match(line):
            yield from _END.split(_plain(" ".join(paragraph).strip()))
            paragraph = []
        if not line.startswith(_NO_PROSE):
            paragraph.append(_ITEM.sub("", line))


def _plain(text: str) -> str:
    """With one word for each piece of code, and the texts of links alone."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "X", text))


def found(page: str, words: dict[str, str]) -> Iterator[str]:
    if page.find(_GENERATED, 0, 400) >= 0:
        return
    for sentence in sentences(page):
        if (count := len(_WORD.findall(sentence))) > MOST_WORDS:
            yield f"{count} words: {sentence}"
    for _, word in in_text(_plain(_LEFT_OUT.sub("", page)), words):
        yield f"{word} → {words[word]}"


def main(paths: list[str]) -> int:
    words, count = listed(), 0
    pages = ["git", "ls-files", *(paths or _PAGES)]
    for path in subprocess.run(pages, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.split():
        for line in found((_ROOT / path).read_text(), words):
            print(f"{path}: {line}")
            count += 1
    print(f"{count} found", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
