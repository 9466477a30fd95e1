"""Pages that are written by programs are as those programs write them now."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.server.proxy.decision_headers import RECEIPTS, receipts
from tools import cli_reference, config_reference, headers_reference, metrics_reference, records_reference

ROOT = Path(__file__).resolve().parents[2]
CITED = re.compile(r"\bbenchmarks[./](?!README|NAME|py\b)([a-z_]+)")


@pytest.mark.parametrize(
    ("target", "page"),
    [
        (config_reference.TARGET, config_reference.reference),
        (metrics_reference.TARGET, metrics_reference.page),
        (records_reference.TARGET, records_reference.page),
        (headers_reference.TARGET, headers_reference.page),
        (cli_reference.TARGET, cli_reference.page),
    ],
    ids=lambda each: each.stem if isinstance(each, Path) else each.__module__,
)
def test_a_generated_page_is_what_its_generator_writes(target: Path, page: Callable[[], str]) -> None:
    assert target.read_text() == page(), f"run: python -m {page.__module__}"


def test_every_receipt_is_explained() -> None:
    sent = set(re.findall(r"x-turnpike-[a-z-]+(?=:)", inspect.getsource(receipts)))
    assert sent == set(RECEIPTS)


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
