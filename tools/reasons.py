"""Writes the page's table of terms, and docs/reference/reasons.md: `python -m tools.reasons`.

The sentences stand in `gateway/dashboard/sentences.py`, the terms in `docs/guide/glossary.md`: the places to
change them.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.dashboard.sentences import EDGES, MOVES, PLACEMENTS, REFUSALS, SOURCES, WAITS

_ROOT: Final = Path(__file__).parent.parent
TERMS: Final = _ROOT / "gateway" / "dashboard" / "static" / "glossary.js"
GLOSSARY: Final = _ROOT / "docs" / "guide" / "glossary.md"
PAGE: Final = _ROOT / "docs" / "reference" / "reasons.md"
_TABLES: Final[tuple[tuple[str, Mapping[str, str]], ...]] = (
    ("Why a turn waits", WAITS),
    ("Why it ran there", PLACEMENTS),
    ("Why it was refused", REFUSALS),
    ("Why the window was moved", MOVES),
    ("How a turn follows another one", EDGES),
    ("How its session was recognised", SOURCES),
)


_HEAD: Final = """\
# Reasons

<!-- Written by `python -m tools.reasons`; change gateway/dashboard/sentences.py, not this file. -->

What the words in records, receipts (`x-turnpike-reason`) and metrics mean, as the dashboard and
`turnpike explain` say it.
"""


def terms() -> str:
    """The page's module of terms: what stands in the glossary's first two columns."""
    lines = [line.split(" | ") for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    plain = [[cell.strip("| ").replace("`", "").replace("\\|", "|") for cell in line[:2]] for line in lines]
    rows = {term.lower(): meaning for term, meaning in plain if not term.startswith("word")}
    return (
        "// Written by `python -m tools.reasons`; change docs/guide/glossary.md, not this file.\n\n"
        f"export const GLOSSARY = {json.dumps(rows, indent=2, ensure_ascii=False)};\n"
    )


def page() -> str:
    """The documentation's."""
    parts = [_HEAD]
    for about, table in _TABLES:
        rows = "".join(f"| `{key}` | {says} |\n" for key, says in table.items())
        parts.append(f"\n## {about}\n\n| | |\n|---|---|\n{rows}")
    return "".join(parts)


if __name__ == "__main__":
    TERMS.write_text(terms())
    PAGE.write_text(page())
    print(f"wrote {TERMS.name} and {PAGE.name}")
