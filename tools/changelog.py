"""News fragments as a changelog.

    python -m tools.changelog                  # writes CHANGELOG.md: what is unreleased, above the releases
    python -m tools.changelog --release 0.2.0  # under that version and today's date; deletes the fragments

`newsfragments/README.md` says what a fragment is. An `Unreleased` section that is there is written anew.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

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
_UNRELEASED = "Unreleased"
_NAME = re.compile(rf"\+?(?P<topic>[a-z0-9-]+)\.(?P<kind>{'|'.join(KINDS)})\.md")


class Fragment(NamedTuple):
    path: Path
    kind: str
    text: str


def read_fragments(folder: Path) -> list[Fragment]:
    """In the order of their topics. Raises ValueError for a file that is none."""
    found = []
    for path in sorted(folder.glob("*.md"), key=lambda path: path.name.lstrip("+")):
        if path.name == "README.md":
            continue
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path.name} is no name of a fragment")
        found.append(Fragment(path, match["kind"], " ".join(path.read_text().split())))
    return found


def section(heading: str, fragments: Iterable[Fragment]) -> str:
    parts = [f"\n## {heading}\n"]
    by_kind: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for fragment in fragments:
        by_kind[fragment.kind].append(f"- {fragment.text}\n")
    parts += [f"\n### {title}\n\n{''.join(by_kind[kind])}" for kind, title in KINDS.items() if by_kind[kind]]
    return "".join(parts)


def with_section(changelog: str, new: str) -> str:
    """The changelog with this section on top, instead of an unreleased one."""
    rest = changelog.removeprefix(_TITLE)
    if rest.startswith(f"\n## {_UNRELEASED}\n"):
        _, found, after = rest[4:].partition("\n## ")
        rest = f"\n## {after}" if found else ""
    return _TITLE + new + rest


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--release", metavar="VERSION")
    version: str | None = parser.parse_args(argv).release
    fragments, target = read_fragments(root / "newsfragments"), root / "CHANGELOG.md"
    heading = _UNRELEASED if version is None else f"{version} ({datetime.now(UTC).date()})"
    before = target.read_text() if target.exists() else ""
    target.write_text(with_section(before, section(heading, fragments)))
    if version is not None:
        for fragment in fragments:
            fragment.path.unlink()
    print(f"{target.name}: {len(fragments)} fragments under {heading}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
