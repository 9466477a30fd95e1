"""requirements.lock has a version and hashes for whatever set-up installs, and names no place."""

import re
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement

from tests.project.layout import PYPROJECT, ROOT

LOCK = (ROOT / "requirements.lock").read_text()
ENTRY = re.compile(
    r"^([a-z0-9-]+)==(\S+)(?: ; [^\\\n]+)?(?: \\)?((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)*)$", re.M
)


def entries() -> Iterator[tuple[str, str, str]]:
    yield from ENTRY.findall(LOCK)


def test_it_holds_nothing_but_versions_with_hashes():
    assert ENTRY.sub("", LOCK).strip().startswith("#") and len(ENTRY.sub("", LOCK).strip().splitlines()) == 1
    assert [name for name, _, hashes in entries() if not hashes] == ["torch"], "each index has its own build"
    assert "://" not in LOCK


def needs() -> Iterator[str]:
    project, groups = PYPROJECT["project"], PYPROJECT["dependency-groups"]
    yield from project["dependencies"]
    for several in (*project["optional-dependencies"].values(), *groups.values()):
        yield from several
    yield from ("torch", *PYPROJECT["build-system"]["requires"])


@pytest.mark.parametrize("need", sorted(set(needs())))
def test_it_has_what_is_needed_within_its_bounds(need: str):
    wanted = Requirement(need)
    found = [version for name, version, _ in entries() if name == wanted.name.lower().replace("_", "-")]
    assert found and all(version in wanted.specifier for version in found), need
