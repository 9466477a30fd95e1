"""Pages that are written by programs are as those programs write them now."""

import re
from pathlib import Path

from tools import config_reference

ROOT = Path(__file__).resolve().parents[2]
CITED = re.compile(r"\bbenchmarks[./](?!README|NAME|py\b)([a-z_]+)")


def test_the_configuration_page_is_up_to_date() -> None:
    assert config_reference.TARGET.read_text() == config_reference.reference(), (
        "run: python -m tools.config_reference"
    )


def test_every_setting_is_explained() -> None:
    unexplained = [line for line in config_reference.reference().splitlines() if line.endswith("|  |")]
    assert unexplained == []


def test_every_benchmark_that_is_cited_exists() -> None:
    cited = {
        (page.name, name)
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
        if "decisions" not in page.parts and page.name != "CHANGELOG.md"
        for name in CITED.findall(page.read_text())
    }
    assert len(cited) > 20
    at = ROOT / "benchmarks"
    missing = {
        (page, name) for page, name in cited if not (at / name).is_dir() and not (at / f"{name}.py").exists()
    }
    assert not missing


def test_every_module_that_the_papers_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs/papers.md").read_text())
    assert len(named) > 100
    trees = [ROOT / tree for tree in ("gateway", "engine_ext", "lab", "tests", "examples", "benchmarks")]
    there = {path.name for tree in trees for path in tree.rglob("*.py")}
    assert [each for each in named if not ((ROOT / each).is_file() if "/" in each else each in there)] == []
