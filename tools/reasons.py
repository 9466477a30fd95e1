"""Writes the page's table of reasons and docs/reference/reasons.md: `python -m tools.reasons`.

The sentences stand in `gateway/dashboard/sentences.py`, the one place to change them.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.dashboard.sentences import EDGES, MOVES, PLACEMENTS, REFUSALS, SOURCES, WAITS

_ROOT: Final = Path(__file__).parent.parent
SCRIPT: Final = _ROOT / "gateway" / "dashboard" / "static" / "reasons.js"
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


def page() -> str:
    """The documentation's."""
    parts = [_HEAD]
    for _, about, table in _TABLES:
        rows = "".join(f"| `{key}` | {says} |\n" for key, says in table.items())
        parts.append(f"\n## {about}\n\n| | |\n|---|---|\n{rows}")
    return "".join(parts)


if __name__ == "__main__":
    SCRIPT.write_text(script())
    PAGE.write_text(page())
    print(f"wrote {SCRIPT.name} and {PAGE.name}")
