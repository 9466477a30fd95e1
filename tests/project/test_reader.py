"""What an operator asks: the answer stands in the guide, two links away at most, and its commands exist."""

import re
import shlex
from pathlib import Path

import pytest

from gateway.__main__ import _parser
from tests.project.test_pages import FENCE, GUIDE, LINK, ROOT, anchor_of

INDEX = ROOT / "docs/README.md"
ANSWERS = {
    "How do I install it?": ["pip install .", "turnpike --version"],
    "How do I point an agent at it?": ["OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"],
    "Why did my turn wait?": ["turnpike explain", "x-turnpike-request", "`kv_full`"],
    "How do I cap an agent that runs away, or stop it?": ["[[bounds]]", "turnpike sessions stop"],
    "How do I add a replica? How do I drain one?": ["reload", "/drain"],
    "How do I stop or upgrade the gateway without cutting answers?": ["SIGTERM", "server.drain_s"],
    "How do I run several gateways?": ["[shared]", "redis://"],
    "How do I give a team a key and a quota?": ["turnpike hash-key", "key_hashes", "quota"],
    "Where is the dashboard, and who may see it?": ["http://127.0.0.1:8081/turnpike/"],
    "What does the gateway cost, and when does it not help?": ["of CPU", "KV caches"],
}
"""What the first place that the index names for a question has to say."""
ROW = re.compile(r"^\| (.+\?) \| (.+) \|$", re.MULTILINE)
COMMAND = re.compile(r"(?:^|`)(?:[A-Z_]+=\S+ )?turnpike ([a-z-][^`\n]*)", re.MULTILINE)
"""In a block or in a line: its arguments."""


def asked() -> dict[str, list[str]]:
    """The index's questions, each with its links."""
    return {question: LINK.findall(answer) for question, answer in ROW.findall(INDEX.read_text())}


def section(page: Path, anchor: str) -> str:
    """From its heading to the next one. KeyError without such a heading."""
    # A line of a code block that looks like a heading is none.
    text = FENCE.sub(lambda block: block[0].replace("\n#", "\n\0"), page.read_text())
    _, *parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    found = {anchor_of(heading): told for heading, told in zip(parts[::2], parts[1::2], strict=True)}
    return found[anchor].replace("\0", "#")


def links_away() -> dict[Path, int]:
    """Every page, from the index without its questions."""
    found, texts = {INDEX: 0}, [(INDEX, ROW.sub("", INDEX.read_text()))]
    for page, text in texts:
        for link in LINK.findall(FENCE.sub("", text)):
            target = (page.parent / link.partition("#")[0]).resolve()
            if "://" not in link and target.suffix == ".md" and target not in found:
                found[target] = found[page] + 1
                texts.append((target, target.read_text()))
    return found


def test_the_index_answers_what_an_operator_asks() -> None:
    assert list(asked()) == list(ANSWERS)


@pytest.mark.parametrize("question", ANSWERS)
def test_the_answer_stands_where_the_index_says(question: str) -> None:
    path, _, anchor = asked()[question][0].partition("#")
    page = INDEX.parent / path
    assert page in GUIDE
    told = section(page, anchor)
    assert [each for each in ANSWERS[question] if each not in told] == []
    assert len(told.split()) < 250, "nobody finds it there in a minute"


@pytest.mark.parametrize("question", ANSWERS)
def test_whoever_reads_from_the_beginning_comes_there_too(question: str) -> None:
    away = links_away()
    assert [link for link in asked()[question] if away[INDEX.parent / link.partition("#")[0]] > 2] == []


def test_commands_that_the_guide_shows_exist(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [line for page in GUIDE for line in COMMAND.findall(page.read_text().replace("\\\n", " "))]
    assert len(shown) > 20
    assert {line: said for line in shown if (said := refusal(line, capsys))} == {}


def refusal(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the program says against these arguments; empty if it takes them, or wants more."""
    try:
        _parser().parse_args(shlex.split(line, comments=True))
    except SystemExit:  # `--version` ends so, too, and says it elsewhere
        said = capsys.readouterr().err
        return "" if "the following arguments are required" in said else said
    return ""
