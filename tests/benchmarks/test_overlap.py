"""What the simulations of overlap are held against."""

import pytest

from benchmarks.overlap import (
    BASELINE,
    VARIANTS,
    Figures,
    judge_ablation,
    judge_harm,
)
from benchmarks.verdict import Verdict


def runs(*ftr_s: float, completion_s: float = 60.0) -> list[Figures]:
    return [
        {
            "final_ttft_p50_s": each,
            "final_ttft_p90_s": 2 * each,
            "completion_p50_s": completion_s,
            "hit_rate": 0.2,
        }
        for each in ftr_s
    ]


@pytest.mark.parametrize(("ours", "missed"), [(33.0, []), (35.0, ["paper_both_ftr_p50_less"])])
def test_less_than_the_papers_gain_is_missed(ours, missed):
    verdict = Verdict()
    judge_ablation("paper", {BASELINE: runs(40, 44), VARIANTS["both"]: runs(ours, ours * 1.1)}, verdict)
    assert verdict.missed == missed
    gain = verdict.figures["paper_both_ftr_p50_less"].value
    assert gain == pytest.approx(1 - ours / 40, abs=1e-3)


@pytest.mark.parametrize(("on", "missed"), [(1.005, 0), (1.02, 4)])
def test_who_pays_more_than_one_per_cent_is_told(on, missed):
    names = ("ttft_mean_s", "ttft_p90_s", "completion_mean_s", "completion_p90_s")
    verdict = Verdict()
    judge_harm("r", [dict.fromkeys(names, on)], [dict.fromkeys(names, 1.0)], verdict)
    assert len(verdict.missed) == missed
