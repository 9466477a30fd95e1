"""Linters over what is not Python: shell, YAML, container files."""

import json

import pytest

from tests.project.layout import BIN, ROOT, run

SHELL = [ROOT / ".ci/run", *sorted(ROOT.glob("tools/*.sh"))]
DOCKERFILES = sorted(ROOT.glob("docker/*.Dockerfile"))


def test_shellcheck():
    done = run(BIN / "shellcheck", "--external-sources", *SHELL)
    assert done.returncode == 0, done.stdout


def test_yamllint():
    done = run(BIN / "yamllint", "--strict", ROOT / "docker-compose.yml", ROOT / ".yamllint")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint(dockerfile):
    done = run(BIN / "hadolint", "--format", "json", dockerfile)
    assert json.loads(done.stdout) == []
    assert done.returncode == 0
