"""News fragments become a release's section of CHANGELOG.md, and are deleted.

    python -m tools.changelog 0.1.1

`newsfragments/README.md` says what a fragment is.
"""

import re
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = {
    "feature": "New",
    "change": "Changed",
    "removal": "Removed",
    "bugfix": "Fixed",
    "doc": "Documentation",
}
"""Of fragments, in the order of the changelog."""
_TITLE = "# Changelog\n"
_NAME = re.compile(rf"(\d+|\+[a-z0-9-]+)\.(?P<kind>{'|'.join(KINDS)})\.md")


def read_fragments(folder: Path) -> dict[Path, str]:
    """Each one's kind. Raises ValueError for a file that is none."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.name == "README.md":
            continue
        match = _NAME.fullmatch(path.name)
        if match is None or not path.read_text().strip():
            raise ValueError(f"{path.name} is not the name of a fragment, or the fragment is empty")
        found[path] = match["kind"]
    return found


def release(version: str, root: Path = ROOT) -> None:
    fragments = read_fragments(root / "newsfragments")
    section = f"\n## {version} ({datetime.now(UTC).date()})\n"
    for kind, title in KINDS.items():
        items = [f"- {' '.join(path.read_text().split())}\n" for path in fragments if fragments[path] == kind]
        if items:
            section += f"\n### {title}\n\n{''.join(items)}"
    changelog = root / "CHANGELOG.md"
    changelog.write_text(_TITLE + section + changelog.read_text().removeprefix(_TITLE))
    for path in fragments:
        path.unlink()


if __name__ == "__main__":
    release(sys.argv[1])
