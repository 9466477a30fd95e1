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
IN_HYPOTHESIS = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_property(number):
    while True:
        pass
"""
IN_ASYNC = """
import asyncio

async def test_waiting():
    await asyncio.Event().wait()
"""
IN_A_FIXTURE = """
import pytest, threading

@pytest.fixture(scope="session")
def engine():
    threading.Event().wait()

def test_with_engine(engine):
    pass
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
IN_C = """
import itertools

def test_in_c():
    any(itertools.repeat(False))
"""
AT_IMPORT = """
import threading
threading.Event().wait()
"""
ONE_IS_LONGER = """
import pytest, time

@pytest.mark.timeout(30)
@pytest.mark.parametrize("seconds", [0, 3])
def test_takes(seconds):
    time.sleep(seconds)
"""
IN_TEARDOWN = """
import pytest, threading

@pytest.fixture
def engine():
    yield
    threading.Event().wait()

def test_fails(engine):
    assert False
"""
NOT_OVER = """
import threading
threading.Thread(target=threading.Event().wait).start()

def test_over():
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


def run_suite(suite: Path, source: str, *more: str, grace_s: int = 1) -> tuple[int, str]:
    (suite / "test_it.py").write_text(source)
    options = ["-o", "timeout=1", "-o", f"timeout_grace={grace_s}", "-p", "no:cacheprovider", *more]
    done = run(sys.executable, "-m", "pytest", *options, cwd=suite.parent, env={"PYTEST_ADDOPTS": ""})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (LOOP, "test_plain"),
        (IN_HYPOTHESIS, "test_property"),
        (IN_ASYNC, "test_waiting"),
        (IN_A_FIXTURE, "test_with_engine"),
    ],
    ids=["a loop", "in Hypothesis", "async", "in a fixture"],
)
def test_a_hung_test_fails_and_the_next_one_runs(suite: Path, source: str, name: str):
    status, said = run_suite(
        suite, source + AND_ANOTHER, grace_s=120
    )  # it can be interrupted, so none passes
    assert status == 1, said
    assert f"Hung: tests/test_it.py::{name} ran for more than 1 s" in said
    assert "test_it.py:" in said  # where it was
    assert "1 passed" in said


@pytest.mark.parametrize("more", [(), ("-n", "1", "--max-worker-restart=0")])
def test_one_that_cannot_be_interrupted_ends_the_run(suite: Path, more: tuple[str, ...]):
    status, said = run_suite(suite, SWALLOWS, *more)
    assert status == 1, said
    assert "tests/test_it.py::test_deaf hangs (2 s); this process ends." in said
    assert "in test_deaf" in said


def test_so_does_one_that_failed_and_hangs_when_it_is_torn_down(suite: Path):
    status, said = run_suite(suite, IN_TEARDOWN)
    assert status == 1, said
    assert "tests/test_it.py::test_fails hangs" in said
    assert "in engine" in said


def test_so_does_one_that_never_returns_from_c(suite: Path):
    status, said = run_suite(suite, IN_C)
    assert status == 1, said
    assert "in test_in_c" in said


def test_so_does_a_module_that_hangs_when_it_is_imported(suite: Path):
    status, said = run_suite(suite, AT_IMPORT, "-o", "timeout_of_collection=1")
    assert status == 1, said
    assert "collecting tests/test_it.py hangs" in said
    assert "test_it.py" in said.partition("hangs")[2]


@pytest.fixture
def short_end(suite: Path) -> None:
    text = (suite / "hangs.py").read_text()
    (suite / "hangs.py").write_text(text.replace("_END_OF_RUN_S: Final = 60.0", "_END_OF_RUN_S: Final = 1.0"))


@pytest.mark.usefixtures("short_end")
def test_a_thread_that_never_ends_ends_with_the_run(suite: Path):
    status, said = run_suite(suite, NOT_OVER)
    assert status == 1, said
    assert "the end of the run hangs" in said


@pytest.mark.usefixtures("short_end")
def test_a_worker_that_has_no_test_left_waits_for_the_others(suite: Path):
    status, said = run_suite(suite, ONE_IS_LONGER, "-n", "2")
    assert status == 0, said
    assert "hangs" not in said
