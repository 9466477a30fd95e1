import json

import pytest

from benchmarks.shapes import SHAPES, Measured
from benchmarks.tables import fastest, judge
from benchmarks.verdict import Interval, Spread, Verdict, ratios

TURNS = next(each for each in SHAPES if each.name == "turns_100kb_chat")


def rounds(*values: float, failures: int = 0, strangers_share: float = 0.0) -> list[Measured]:
    return [
        Measured(
            value=value,
            cpu_us=100.0,
            core_share=1.0,
            strangers_share=strangers_share,
            answers=10,
            failures=failures,
            first_failure="",
        )
        for value in values
    ]


def test_a_bound_itself_holds():
    verdict = Verdict()
    verdict.at_least("speed", 1.5, 1.5)
    verdict.at_most("memory", 250, 250)
    assert verdict.exit_status == 0


@pytest.mark.parametrize("value", [1.49, None])
def test_what_is_missed_or_was_not_measured_fails(value):
    verdict = Verdict()
    verdict.tell("told", None)
    assert not verdict.at_least("speed", value, 1.5).ok
    assert verdict.exit_status == 1
    assert verdict.missed == ["speed"]
    assert json.loads(verdict.as_json()) == {
        "told": {"value": None, "target": None, "ok": True},
        "speed": {"value": value, "target": ">= 1.5", "ok": False},
    }


def test_ratios_are_taken_round_by_round():
    # The machine was twice as slow in the second round; the ratio is the same.
    assert ratios([20.0, 10.0, 30.0], [10.0, 5.0, 10.0]) == Spread(2.0, 2.0, 3.0)
    assert ratios([1.0], [0.0]) is None
    assert ratios([], []) is None


def test_the_fastest_rival_is_the_one_that_counts():
    results = {"turnpike": rounds(30, 30), "smg": rounds(40, 40), "vllm-router": rounds(25, 25)}
    verdict = Verdict()
    judge(TURNS, results, verdict)
    figure = verdict.figures["turns_100kb_chat_ratio"]
    assert (figure.value, figure.ok) == (1.2, False)


def test_a_rival_that_gave_wrong_answers_is_none():
    results = {"turnpike": rounds(30), "smg": rounds(10), "vllm-router": rounds(9, failures=1)}
    assert fastest(TURNS, results, ("smg", "vllm-router")) == "smg"
    del results["smg"]
    verdict = Verdict()
    judge(TURNS, results, verdict)
    assert verdict.missed == ["turns_100kb_chat_ratio"]


def test_the_interval_of_a_mean():
    found = Interval.of([0.9, 1.0, 1.1])
    assert found.mean == pytest.approx(1.0)
    assert found.high - found.mean == pytest.approx(4.30 * 0.1 / 3**0.5) == pytest.approx(1.0 - found.low)
    assert Interval.of([2.0]) == Interval(2.0, float("-inf"), float("inf")), "one seed says little"
    many = Interval.of([1.0, 1.2] * 20)
    assert many.high < 1.14, "more seeds than the table knows"
