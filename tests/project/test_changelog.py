"""Fragments become a changelog, and a release takes them away."""

import pytest

from tests.project.layout import ROOT
from tools import changelog


def write(root, **fragments: str):
    folder = root / "newsfragments"
    folder.mkdir(exist_ok=True)
    (folder / "README.md").write_text("not one")
    for name, text in fragments.items():
        topic, kind = name.rsplit("_", 1)
        (folder / f"+{topic}.{kind}.md").write_text(text)


def test_a_release_collects_all_and_the_next_one_stands_above_it(tmp_path):
    write(tmp_path, b_bugfix="It failed.\nNo more.\n", a_feature="It can.", c_feature="And this.")
    assert changelog.main([], tmp_path) == changelog.main([], tmp_path) == 0
    unreleased = (
        "\n## Unreleased\n\n### New\n\n- It can.\n- And this.\n\n### Fixed\n\n- It failed. No more.\n"
    )
    assert (tmp_path / "CHANGELOG.md").read_text() == "# Changelog\n" + unreleased
    changelog.main(["--release", "0.2.0"], tmp_path)
    first = (tmp_path / "CHANGELOG.md").read_text()
    assert first.startswith("# Changelog\n\n## 0.2.0 (20") and "Unreleased" not in first
    assert [each.name for each in (tmp_path / "newsfragments").iterdir()] == ["README.md"]
    write(tmp_path, d_removal="It is gone.")
    changelog.main([], tmp_path)
    changelog.main(["--release", "0.3.0"], tmp_path)
    headings = [
        line for line in (tmp_path / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")
    ]
    assert [each.split()[1] for each in headings] == ["0.3.0", "0.2.0"]


def test_every_fragment_here_can_be_collected():
    assert len(changelog.read_fragments(ROOT / "newsfragments")) > 20


def test_a_file_that_is_no_fragment_is_named(tmp_path):
    write(tmp_path, x_gossip="Hm.")
    with pytest.raises(ValueError, match=r"\+x\.gossip\.md"):
        changelog.main([], tmp_path)
