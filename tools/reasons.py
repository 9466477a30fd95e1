"""Writes the page's tables of reasons and of terms, and docs/reference/reasons.md: `python -m tools.reasons`.

The sentences stand in `gateway/dashboard/sentences.py`, the terms in `docs/guide/glossary.md`: the places to
change them.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.dashboard.sentences import EDGES, MOVES, PLACEMENTS, REFUSALS, SOURCES, WAITS

_ROOT: Final = Path(__file__).parent.parent
SCRIPT: Final = _ROOT / "gateway" / "dashboard" / "static" / "reasons.js"
TERMS: Final = SCRIPT.with_name("glossary.js")
GLOSSARY: Final = _ROOT / "docs" / "guide" / "glossary.md"
PAGE: Final = _ROOT / "docs" / "reference" / "reasons.md"
_TABLES: Final[tuple[tuple[str, str, Mapping[str, str]], ...]] = (
    ("WAITS", "Why a turn waits", WAITS),
    ("PLACES", "Why it ran there", PLACEMENTS),
    ("REFUSALS", "Why it was refused", REFUSALS),
    ("MOVES", "Why the window was moved", MOVES),
    ("EDGES", "How a turn follows another one", EDGES),
    ("SOURCES", "How its session was recognised", SOURCES),
)


_HEAD: Final = """\
# Reasons

<!-- Written by `python -m tools.reasons`; change gateway/dashboard/sentences.py, not this file. -->

What the words in records, receipts (`x-turnpike-reason`) and metrics mean, as the dashboard and
`turnpike explain` say it.
"""


def script() -> str:
    """The page's module."""
    parts = [
        "// Written by `python -m tools.reasons`; change gateway/dashboard/sentences.py, not this file.\n"
    ]
    for name, about, table in _TABLES:
        rows = "".join(f"  {json.dumps(key)}: {json.dumps(says)},\n" for key, says in table.items())
        parts.append(f"\n/** {about}. */\nexport const {name} = {{\n{rows}}};\n")
    return "".join(parts)


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
    for _, about, table in _TABLES:
        rows = "".join(f"| `{key}` | {says} |\n" for key, says in table.items())
        parts.append(f"\n## {about}\n\n| | |\n|---|---|\n{rows}")
    return "".join(parts)


if __name__ == "__main__":
    SCRIPT.write_text(script())
    TERMS.write_text(terms())
    PAGE.write_text(page())
    print(f"wrote {SCRIPT.name}, {TERMS.name} and {PAGE.name}")
