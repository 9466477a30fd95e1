"""Tests that hang, each in a pytest of its own: what is said of them, and that they end."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.project.layout import ROOT, run

pytestmark = pytest.mark.slow

LOOP = """
def test_plain():
    while True:
        pass
"""
IN_ASYNC = """
import asyncio

async def test_waiting():
    await asyncio.Event().wait()
"""
AND_ANOTHER = """
def test_another():
    pass
"""
SWALLOWS = """
def test_deaf():
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "tests/hangs.py", tests)
    (tests / "conftest.py").write_text('pytest_plugins = ["tests.hangs"]\n')
    return tests


def run_suite(suite: Path, source: str, *, grace_s: int = 1) -> tuple[int, str]:
    (suite / "test_it.py").write_text(source)
    options = ["-o", "timeout=1", "-o", f"timeout_grace={grace_s}", "-p", "no:cacheprovider"]
    done = run(sys.executable, "-m", "pytest", *options, cwd=suite.parent, env={"PYTEST_ADDOPTS": ""})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("source", "name"), [(LOOP, "test_plain"), (IN_ASYNC, "test_waiting")])
def test_a_hung_test_fails_and_the_next_one_runs(suite: Path, source: str, name: str):
    status, said = run_suite(
        suite, source + AND_ANOTHER, grace_s=120
    )  # it can be interrupted, so none passes
    assert status == 1, said
    assert f"Hung: tests/test_it.py::{name} ran for more than 1 s" in said
    assert "test_it.py:" in said  # where it was
    assert "1 passed" in said


def test_one_that_cannot_be_interrupted_ends_the_run(suite: Path):
    status, said = run_suite(suite, SWALLOWS)
    assert status == 1, said
    assert "tests/test_it.py::test_deaf hangs (2 s); this process ends." in said
    assert "in test_deaf" in said
