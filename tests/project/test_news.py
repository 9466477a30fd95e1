"""News fragments and decision records keep to the practice that their folders describe."""

import re

from tests.project.layout import ROOT

FRAGMENT = re.compile(r"(\d+|\+[a-z0-9-]+)\.(feature|bugfix|change|removal|doc)\.md")


def test_fragments_are_named_as_the_readme_says():
    readme = (ROOT / "newsfragments/README.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE) == [
        "feature",
        "bugfix",
        "change",
        "removal",
        "doc",
    ]
    for fragment in (ROOT / "newsfragments").iterdir():
        if fragment.name != "README.md":
            assert FRAGMENT.fullmatch(fragment.name), fragment.name
            assert fragment.read_text().strip(), f"{fragment.name} is empty"


def test_decisions_are_numbered_in_order_and_say_what_they_cost():
    records = sorted((ROOT / "docs/design/decisions").glob("*.md"))
    assert [record.name[:5] for record in records] == [f"{n:04}-" for n in range(1, len(records) + 1)]
    for record in records:
        headings = re.findall(r"^## (\w+)", record.read_text(), re.MULTILINE)
        assert {"Context", "Choice", "Cost"} <= set(headings), record.name
