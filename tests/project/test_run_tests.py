"""`make test`: each part runs whatever another one gave, and one summary names what failed in any."""

import pytest

from benchmarks.processes import ROOT
from tools import run_tests

TESTS = """
import pytest

def test_fails(): assert False
def test_passes(): pass
@pytest.mark.later
def test_later(): pass
@pytest.mark.later
def test_skips(): pytest.skip("it cannot")
@pytest.fixture
def broken():
    yield
    raise ValueError
@pytest.mark.later
def test_breaks_afterwards(broken): pass
"""
PARTS = {"first": ("-m", "not later"), "second": ("-m", "later")}


@pytest.fixture
def summary(tmp_path, capfd):
    """Runs the tests in a folder of their own; returns the exit status and what was printed last."""
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = later\n")

    def run(*arguments: str, parts=PARTS):
        code = run_tests.main(
            ["-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path), *arguments], parts
        )
        return code, capfd.readouterr().out.rpartition("\nslowest ")[2].splitlines()

    return run


@pytest.mark.slow
def test_a_failure_hides_neither_the_other_part_nor_itself(summary):
    code, lines = summary()
    assert code == 1 and lines[-1] == "2 passed, 2 failed, 1 skipped"
    assert lines[-3:-1] == ["FAILED test_some.py::test_fails", "FAILED test_some.py::test_breaks_afterwards"]
    assert lines[0] == "5:" and sum(" s  test_some.py::" in line for line in lines) == 5
    assert [line.partition(" tests in ")[0] for line in lines if " tests in " in line] == [
        "first: 2",
        "second: 3",
    ]


@pytest.mark.slow
def test_tests_of_one_part_may_be_chosen_and_none_is_a_failure(summary):
    code, lines = summary("-k", "test_later")
    assert (code, lines[-1]) == (0, "1 passed, 0 failed, 0 skipped")
    assert summary("-k", "nothing")[0] == 1


@pytest.mark.slow
def test_a_part_that_ends_early_is_named_and_is_a_failure(summary):
    code, lines = summary("-k", "passes", parts={**PARTS, "third": ("--no-such-option",)})
    assert code == 1 and any("third: 0 tests" in line and "ended early (exit 4)" in line for line in lines)


AT_TIMES = """
from pathlib import Path
import pytest

class TestOnce:
    @pytest.mark.parametrize("of", ["a b"])
    def test_fails_once(self, of):
        ran = Path("ran")
        if not ran.exists():
            ran.touch()
            raise AssertionError
def test_fails(): assert %s
@pytest.mark.later
def test_later(): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("passes", [True, False])
def test_what_fails_runs_once_more_alone_and_is_named(tmp_path, capfd, monkeypatch, passes):
    (tmp_path / "test_some.py").write_text(AT_TIMES % passes)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = later\n")
    monkeypatch.chdir(tmp_path)
    code = run_tests.main([], PARTS)
    *_, last, counts = capfd.readouterr().out.splitlines()
    assert code == (0 if passes else 1)
    assert last == "FAILED, and passed alone: test_some.py::TestOnce::test_fails_once[a b]"
    assert counts == f"{1 + passes} passed, {1 - passes} failed, 0 skipped, 1 passed alone"


@pytest.mark.slow
def test_many_failures_do_not_run_once_more(tmp_path, capfd, monkeypatch):
    (tmp_path / "test_some.py").write_text("".join(f"def test_{n}(): assert 0\n" for n in range(4)))
    monkeypatch.chdir(tmp_path)
    assert run_tests.main([], {"all": ()}) == 1
    assert "again, alone" not in capfd.readouterr().out


@pytest.mark.slow
def test_a_test_of_this_tree_can_run_alone(monkeypatch):
    """Its conftest knows xdist."""
    monkeypatch.chdir(ROOT)
    failed = run_tests.Outcome("tests/project/test_run_tests.py::test_nothing", "failed", 0.0)
    assert [each.outcome for each in run_tests.once_more([failed])] == ["passed alone"]


def test_nothing():
    """For the one above."""
