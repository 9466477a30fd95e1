"""Linters over what is not Python: shell, YAML, container files."""

import json
import sys

import pytest

from tests.project.layout import BIN, ROOT, run
from tools import prose
from tools.words import found

SHELL = [ROOT / ".ci/run", *sorted(ROOT.glob("tools/*.sh")), ROOT / "benchmarks/gpu/run.sh"]
DOCKERFILES = sorted(ROOT.glob("docker/*.Dockerfile"))


def test_shellcheck():
    done = run(BIN / "shellcheck", "--external-sources", *SHELL)
    assert done.returncode == 0, done.stdout


def test_yamllint():
    done = run(BIN / "yamllint", "--strict", ROOT / "docker-compose.yml", ROOT / ".yamllint")
    assert done.returncode == 0, done.stdout


def test_the_code_does_without_the_listed_words():
    done = run(sys.executable, "-m", "tools.words", cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_words_are_found_in_names_and_prose():
    source = 'def f(told, at_once):\n    """What was\n    Said."""\n    return told_s  # heard: a shelf\n'
    words = dict.fromkeys(("said", "told", "heard", "Shelf", "at_once"), "")
    assert sorted(found(source, words)) == [
        (1, "at_once"),
        (1, "told"),
        (3, "said"),
        (4, "heard"),
        (4, "told"),
    ]


def test_pages_have_no_long_sentences_and_none_of_the_listed_words():
    done = run(sys.executable, "-m", "tools.prose", cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_long_sentences_and_words_are_found_outside_of_code():
    long = " ".join(["word"] * prose.MOST_WORDS)
    page = f"# {long} one\n\n{long} [more](x.md)\nthan that. It was told.\n\n- {long}\n"
    page += "\n```\ntold\n```\n`told`\n"
    count = prose.MOST_WORDS + 3
    assert list(prose.found(page, {"told": "stated"})) == [
        f"{count} words: {long} more than that.",
        "told → stated",
    ]
    assert list(prose.found("<!-- Written by `python -m tools.x`. -->\ntold", {"told": ""})) == []


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint(dockerfile):
    done = run(BIN / "hadolint", "--format", "json", dockerfile)
    assert json.loads(done.stdout) == []
    assert done.returncode == 0
