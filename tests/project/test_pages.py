"""What the pages name exists: files, sections, settings, commands, reasons. They stay short, and every
question has an answer."""

import itertools
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from gateway.__main__ import _LAB_COMMANDS, _lab_parser, _parser
from gateway.config.load import load_config
from gateway.domain.decision import RefusalReason, WaitReason
from tools import config_reference, metrics_reference

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / f"{name}/README.md" for name in ("engine_ext", "scripted_engine")]
INDEX = ROOT / "docs/README.md"
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "benchmarks/README.md", *PACKAGES, *ROOT.glob("docs/**/*.md")])
LIVING = [page for page in PAGES if page.name != "CHANGELOG.md" and "decisions" not in page.parts]
"""Pages that tell what is."""
GUIDE = sorted(
    [*ROOT.glob("docs/guide/*.md"), *ROOT.glob("docs/operate/*.md"), *ROOT.glob("docs/reference/*.md")]
)
GENERATED = "<!-- Written by `python -m tools."
MOST_WORDS = {
    "README.md": 600,
    "CONTRIBUTING.md": 500,
    "docs/guide/*.md": 7_000,
    "docs/operate/*.md": 7_000,
    "docs/reference/*.md": 4_000,
    "docs/contribute/*.md": 3_500,
}
"""Of all pages of a shelf together, without those that programs write."""


LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:^|`)(?:[A-Z_]+=\S+ )?turnpike ([a-z-][^`\n]*)", re.MULTILINE)
FILE = re.compile(
    r"`((?:gateway|tests|tools|docker|lab|benchmarks|engine_ext|demo|scripted_engine|docs)/[\w./@*-]+)`"
)
SETTING = re.compile(r"`([a-z][a-z_]*(?:\.[a-z][a-z_0-9]*)+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {anchor_of(each) for each in headings}


def anchor_of(heading: str) -> str:
    plain = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
    return plain.strip().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_broken(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def text_of(page: Path) -> str:
    """Without its blocks."""
    return FENCE.sub("", page.read_text())


def test_the_picture_of_the_architecture_is_that_of_the_contracts() -> None:
    page = (ROOT / "docs/design/architecture.md").read_text()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [re.findall(r"[a-z_]{3,}", layer) for layer in contracts[0]["layers"]]
    table = page[page.index("| packages | content |") :].splitlines()[2 : len(layers) + 1]
    assert [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table] == layers[1:], "all but __main__"
    for path, value in re.findall(r"─▶ (\S+?/\w+)[, \w]*?  +([A-Z]\w+)  ", page):
        modules = ROOT.glob(f"gateway/server/{path}.py"), ROOT.glob("gateway/server/proxy/ticket.py")
        assert any(f"class {value}" in each.read_text() for each in itertools.chain(*modules)), value
    assert len(re.findall(r"─▶ \S+?/\w+", page)) >= 5


def words(page: Path) -> int:
    """Bars of tables and blocks of code are none."""
    return len(re.findall(r"\S*\w\S*", text_of(page)))


def test_files_that_pages_name_exist() -> None:
    named = {(page.name, name) for page in LIVING for name in FILE.findall(text_of(page))}
    assert len(named) > 100
    assert [each for each in named if not list(ROOT.glob(each[1]))] == []


def test_metrics_that_pages_name_exist() -> None:
    rows = [*metrics_reference.gateway_rows(), *metrics_reference.plugin_rows()]
    known = {row.name + end for row in rows for end in ("", "_bucket", "_sum", "_count")}
    named = {
        (page.name, name) for page in LIVING for name in re.findall(r"`(turnpike_[a-z_]+)", text_of(page))
    }
    assert len(named) > 30
    packages = {"turnpike_vllm", "turnpike_workload"}
    assert {each for each in named if each[1] not in known | packages} == set()


def test_settings_that_pages_name_exist() -> None:
    keys = set(config_reference.keys())
    sections = {part for key in keys for part in key.split(".")[:-1]}
    known = {".".join(key.split(".")[start:end]) for key in keys for start in range(5) for end in range(1, 7)}
    named = {(page.name, name) for page in LIVING for name in SETTING.findall(text_of(page))}
    assert len(named) > 100
    others = {"picker.enabled", "tools.vllm_tests"}  # a value of the chart, and a module
    strange = {each for each in named if not each[1].endswith(".py") and each[1] not in known | others}
    assert {each for each in strange if each[1].split(".")[0] in sections} == set()


def linked(page: Path) -> set[Path]:
    links = (link.partition("#")[0] for link in LINK.findall(page.read_text()))
    return {(page.parent / link).resolve() for link in links if link and "://" not in link}


def test_every_question_has_an_answer_at_most_two_links_from_the_readme() -> None:
    questions = re.findall(r"^\| ([^|]*\?) \| (.*) \|$", INDEX.read_text(), re.MULTILINE)
    assert len(questions) == 20
    first = linked(ROOT / "README.md")
    assert INDEX in first
    for question, answer in questions:
        sections = [
            link for link in LINK.findall(answer) if "#" in link
        ]  # `test_no_link_is_broken` follows them
        files = re.findall(r"`([A-Z]+\.md)`", answer)
        assert sections or files, question
        assert {ROOT / name for name in files} <= first, question


def test_every_page_is_in_the_index_and_in_the_site() -> None:
    pages = {each for each in ROOT.glob("docs/**/*.md") if "decisions" not in each.parts} - {INDEX}
    assert pages - linked(INDEX) == set()
    nav = set(re.findall(r"^ +- (\S+\.md)$", (ROOT / "tools/mkdocs.yml").read_text(), re.MULTILINE))
    assert {str(each.relative_to(ROOT / "docs")) for each in pages} == nav


@pytest.mark.parametrize("shelf", MOST_WORDS)
def test_shelves_stay_short(shelf: str) -> None:
    pages = [each for each in ROOT.glob(shelf) if GENERATED not in each.read_text()]
    assert sum(map(words, pages)) <= MOST_WORDS[shelf]


def test_all_that_is_written_by_hand_stays_short() -> None:
    """A program writes the results."""
    pages = [each for each in PAGES if each.name not in ("CHANGELOG.md", "results.md")]
    assert 20_000 < sum(words(each) for each in pages if GENERATED not in each.read_text()) <= 40_000


def test_reasons_that_the_guide_explains_are_those_of_the_gateway() -> None:
    page = (ROOT / "docs/guide/troubleshoot.md").read_text()
    waits = page[page.index("## Turns wait") : page.index("## Answers are slow")]
    named = set(re.findall(r"`(\w+_\w+)`", waits))
    known = {reason.value for reason in WaitReason} | {reason.value for reason in RefusalReason}
    assert named & known
    assert named - known == set()


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.name)
def test_settings_in_the_guide_are_valid(page: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(?!# fleet)(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    keys = itertools.count()
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        backend = (
            "" if "[[pools" in block else '\n[[pools]]\nreplicas = [{ url = "http://127.0.0.1:8000" }]\n'
        )
        path.write_text(re.sub("sha256:…", lambda _: f"sha256:{next(keys):064x}", block) + backend)
        load_config(str(path), {}, {})


def test_commands_that_the_guide_shows_exist(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [line for page in GUIDE for line in COMMAND.findall(page.read_text().replace("\\\n", " "))]
    assert len(shown) > 20
    assert {line: error for line in shown if (error := parse_error(line, capsys))} == {}


def parse_error(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Empty if the program takes these arguments, or wants more."""
    words = shlex.split(line, comments=True)
    try:
        (_lab_parser(words[0]) if words[0] in _LAB_COMMANDS else _parser()).parse_args(words)
    except SystemExit:  # `--version` ends so, too, and writes elsewhere
        error = capsys.readouterr().err
        return "" if "the following arguments are required" in error else error
    return ""
