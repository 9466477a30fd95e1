"""Fragments become a changelog, and a release takes them away."""

import re

import pytest

from tests.project.layout import ROOT
from tools import changelog


def write(root, **fragments: str) -> None:
    folder = root / "newsfragments"
    folder.mkdir(exist_ok=True)
    (folder / "README.md").write_text("not one")
    for name, text in fragments.items():
        topic, kind = name.rsplit("_", 1)
        (folder / f"+{topic}.{kind}.md").write_text(text)


def test_a_release_collects_all_above_the_one_before_and_deletes_them(tmp_path):
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0\n\nWhat it is.\n")
    write(tmp_path, b_bugfix="It failed.\nNo more.\n", a_feature="It can.", c_feature="And this.")
    changelog.release("0.1.1", tmp_path)
    title, first, new, fixed, before = re.split(r"\n#+ ", (tmp_path / "CHANGELOG.md").read_text())
    assert title == "# Changelog\n" and first.startswith("0.1.1 (20")
    assert new == "New\n\n- It can.\n- And this.\n" and fixed == "Fixed\n\n- It failed. No more.\n"
    assert before == "0.1.0\n\nWhat it is.\n"
    assert [each.name for each in (tmp_path / "newsfragments").iterdir()] == ["README.md"]


def test_every_fragment_here_can_be_collected_and_the_readme_lists_their_kinds():
    changelog.read_fragments(ROOT / "newsfragments")
    readme = (ROOT / "newsfragments/README.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE)) == set(changelog.KINDS)


@pytest.mark.parametrize("fragment", [{"x_gossip": "Hm."}, {"x_feature": " \n"}], ids=["kind", "empty"])
def test_a_file_that_is_no_fragment_is_named(tmp_path, fragment):
    write(tmp_path, **fragment)
    with pytest.raises(ValueError, match=rf"\+{fragment.popitem()[0].replace('_', '.')}\.md"):
        changelog.release("0.1.1", tmp_path)
