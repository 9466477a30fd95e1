"""What the gateway says that it saved is judged by what the A/B measured."""

import pytest

from benchmarks.savings import OFF, Outcome, judge
from benchmarks.verdict import Verdict
from gateway.telemetry.savings import Saved
from lab.simulator.results import Totals


def run(*, said_s: float, true_s: float, error_s: float = 1.0, chance: float = 0.0) -> Outcome:
    told = Saved(
        turns=9, uncounted=0, behind=0, left_out=0, prompt_tokens=1000.0, cached_tokens=900.0, cached_s=9.0,
        computed_tokens=100.0, blind_tokens=300.0, busy_s=50.0, blind_s=50.0 + said_s, error_s=error_s,
    )  # fmt: skip
    ours = Totals(prompt_tokens=1000, cached_tokens=900, busy_s=60.0)
    theirs = Totals(prompt_tokens=1000, cached_tokens=700, busy_s=60.0 + true_s)
    again = Totals(prompt_tokens=1000, cached_tokens=700, busy_s=60.0 + true_s * (1 + chance))
    return Outcome(told, ours, theirs, again)


@pytest.mark.parametrize(
    ("said_s", "ok"), [(10.0, True), (8.6, True), (8.4, False), (11.6, False), (-10.0, False)]
)
def test_it_may_be_off_by_so_much_on_average(said_s, ok):
    verdict = Verdict()
    judge("at", [run(said_s=said_s, true_s=10.0)] * 5, verdict)
    assert verdict.figures["at_off"].ok is ok and OFF == 0.15
    assert (verdict.exit_status == 0) is ok


def test_errors_to_both_sides_do_not_make_it_worse_and_the_bar_is_looked_at():
    verdict = Verdict()
    judge("at", [run(said_s=8.0, true_s=10.0), run(said_s=12.0, true_s=10.0, error_s=3.0)], verdict)
    assert verdict.figures["at_off"].value == 0.0
    assert verdict.figures["at_bar_covers"].value == 0.5
    assert verdict.figures["at_tokens_off"].value == 0.0


def test_what_chance_makes_of_the_truth_is_told():
    verdict = Verdict()
    judge("at", [run(said_s=10.0, true_s=10.0, chance=-0.2), run(said_s=10.0, true_s=10.0)], verdict)
    assert verdict.figures["at_chance"].value == pytest.approx(0.1)
    assert verdict.figures["at_chance_most"].value == pytest.approx(0.2)
