"""Decision records keep to the practice that their folder describes."""

import re

from tests.project.layout import ROOT


def test_decisions_are_numbered_in_order_and_say_what_they_cost():
    records = sorted((ROOT / "docs/design/decisions").glob("*.md"))
    assert [record.name[:5] for record in records] == [f"{n:04}-" for n in range(1, len(records) + 1)]
    for record in records:
        headings = re.findall(r"^## (\w+)", record.read_text(), re.MULTILINE)
        assert {"Context", "Choice", "Cost"} <= set(headings), record.name
