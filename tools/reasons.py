"""Writes the page's table of terms, and docs/reference/reasons.md: `python -m tools.reasons`.

The places to change them: sentences in `gateway/dashboard/sentences.py`, terms in `docs/guide/glossary.md`,
and those of the dashboard alone in `tools/dashboard_terms.toml`.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.dashboard.sentences import EDGES, MOVES, PLACEMENTS, REFUSALS, SOURCES, WAITS

_ROOT: Final = Path(__file__).parent.parent
TERMS: Final = _ROOT / "gateway" / "dashboard" / "static" / "glossary.js"
_DASHBOARD: Final = _ROOT / "tools" / "dashboard_terms.toml"
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

The values in records, receipts (`x-turnpike-reason`) and metrics, in the words of the dashboard and of
`turnpike explain`.
"""


def terms() -> str:
    """The page's module of terms: what stands in the glossary's first two columns, and the page's own."""
    lines = [line.split(" | ") for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    plain = {line[0].strip("| "): line[1] for line in lines if not line[0].startswith("| word")}
    rows = {term.lower(): _plain(meaning) for term, meaning in (plain | _dashboard_terms()).items()}
    return (
        "// Written by `python -m tools.reasons`; change the glossary or tools/dashboard_terms.toml.\n\n"
        f"export const GLOSSARY = {json.dumps(rows, indent=2, ensure_ascii=False)};\n"
    )


def page() -> str:
    """The documentation's."""
    parts = [_HEAD]
    for about, table in _TABLES:
        rows = "".join(f"| `{key}` | {says} |\n" for key, says in table.items())
        parts.append(f"\n## {about}\n\n| | |\n|---|---|\n{rows}")
    rows = "".join(f"| {term} | {meaning} |\n" for term, meaning in _dashboard_terms().items())
    parts.append(f"\n## Terms on the dashboard\n\n| | |\n|---|---|\n{rows}")
    return "".join(parts)


def _dashboard_terms() -> dict[str, str]:
    return tomllib.loads(_DASHBOARD.read_text())


def _plain(cell: str) -> str:
    return cell.strip("| ").replace("`", "").replace("\\|", "|")


if __name__ == "__main__":
    TERMS.write_text(terms())
    PAGE.write_text(page())
    print(f"wrote {TERMS.name} and {PAGE.name}")
