"""Decision records keep to the practice that their folder describes."""

import re

from tests.project.layout import ROOT


def test_decisions_keep_their_numbers_and_say_what_they_cost():
    records = sorted((ROOT / "docs/design/decisions").glob("*.md"))
    numbers = [record.name[:4] for record in records]
    assert len(set(numbers)) == len(records)
    supersedes = [line for each in records for line in each.read_text().splitlines() if "Supersedes" in line]
    superseded = re.findall(r"\b\d{4}\b", " ".join(supersedes))
    assert {*numbers, *superseded} == {f"{n:04}" for n in range(1, int(numbers[-1]) + 1)}
    for record in records:
        headings = re.findall(r"^## (\w+)", record.read_text(), re.MULTILINE)
        assert {"Context", "Choice", "Cost"} <= set(headings), record.name


def test_decisions_and_designs_are_short():
    design = ROOT / "docs/design"
    limits = dict.fromkeys(design.glob("*.md"), 1_000) | dict.fromkeys(design.glob("decisions/*.md"), 200)
    del limits[design / "results.md"]  # generated
    limits[design / "baselines.md"] = 1_400  # a dozen of others' mechanisms
    words = {page.name: prose_words(page.read_text()) - limit for page, limit in limits.items()}
    assert {name: over for name, over in words.items() if over > 0} == {}


def prose_words(page: str) -> int:
    """Without tables."""
    return sum(len(line.split()) for line in page.splitlines() if not line.startswith("|"))
