"""Decision records keep to the practice that their folder describes."""

import re

from tests.project.layout import ROOT


def test_decisions_keep_their_numbers_and_say_what_they_cost():
    records = sorted((ROOT / "docs/design/decisions").glob("*.md"))
    numbers = [re.match(r"(\d{4})-", record.name)[1] for record in records]
    assert len(set(numbers)) == len(records)
    superseded = set(re.findall(r"\b\d{4}\b", re.search(r"Supersedes (.*)", records[-1].read_text())[1]))
    assert {*numbers, *superseded} == {f"{n:04}" for n in range(1, int(numbers[-1]) + 1)}
    for record in records:
        headings = re.findall(r"^## (\w+)", record.read_text(), re.MULTILINE)
        assert {"Context", "Choice", "Cost"} <= set(headings), record.name
