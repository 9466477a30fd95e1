"""A missing tool is a failure with its reason; a skip with the same reason where that is allowed."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.project.layout import ROOT, run

pytestmark = pytest.mark.slow  # each runs pytest

SKIPS = """
import pytest
from tests.prerequisites import require_command

def test_needs_npm():
    require_command("no-such-npm", install="Node.js 20 or newer brings it")

@pytest.mark.xfail(reason="known")
def test_known():
    assert False
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "tests" / "prerequisites.py", tmp_path / "tests")
    shutil.copy(ROOT / "tests" / "no_skips.py", tmp_path / "tests" / "conftest.py")
    return tmp_path


def run_suite(suite: Path, allowed: str) -> tuple[int, str]:
    done = run(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        cwd=suite,
        env={"TURNPIKE_ALLOW_SKIPS": allowed},
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("allowed", "code", "summary"), [("1", 0, "1 skipped, 1 xfailed"), ("", 1, "1 failed, 1 xfailed")]
)
def test_a_skip_is_a_failure(suite: Path, allowed: str, code: int, summary: str):
    (suite / "tests/test_it.py").write_text(SKIPS)
    status, output = run_suite(suite, allowed)
    assert status == code, output
    assert summary in output
    assert "needs `no-such-npm` on PATH: Node.js 20 or newer brings it" in output
