"""What is made of the outcomes of vLLM's tests."""

from benchmarks.verdict import Verdict
from tools.vllm_tests.__main__ import Outcome, judge


def test_a_test_counts_against_us_if_it_passes_at_the_engine_alone():
    def outcomes(**passed: bool) -> dict[str, Outcome]:
        return {name: Outcome(test=name, passed=each, why=f"why {name}") for name, each in passed.items()}

    verdict = Verdict()
    direct = outcomes(both=True, ours=True, gone=True, theirs=False, none=False)
    through = outcomes(both=True, ours=False)
    load = "a.py::test_server_load[on]"
    direct[load] = Outcome(test=load, passed=True)
    through[load] = Outcome(test=load, passed=False, why="assert 403 == 200")
    judge(direct, through, verdict, lambda _: None)
    assert {name: figure.value for name, figure in verdict.figures.items()} == {
        "passed_both_ways": 1,
        "failed_through_turnpike": 1,
        "refused_without_trust": 1,
        "failed_at_the_engine": 2,
        "not_run_through_turnpike": 1,
    }
    assert verdict.missed == ["failed_through_turnpike", "not_run_through_turnpike"]
