"""What is told of engines with the plugin against those without."""

from collections.abc import Sequence

import pytest

from benchmarks.plugin_gain import Found, knee_per_h, tell
from benchmarks.verdict import Verdict


def found(mean_s: float, in_time: float) -> Found:
    shares = {f"goodput_{alpha}": in_time for alpha in ("1.5", "2", "4")}
    return {
        "completion_mean_s": mean_s,
        "completion_p90_s": 2 * mean_s,
        "hit_rate": 0.9,
        "preemptions": 0.0,
        **shares,
    }


def test_seeds_are_compared_one_by_one() -> None:
    verdict = Verdict()
    tell(verdict, "x", [found(100, 0.5), found(10, 0.1)], [found(50, 0.6), found(10, 0.3)])
    values = {name: figure.value or 0.0 for name, figure in verdict.figures.items()}
    assert values["x_completion_mean"] == values["x_completion_p90"] == pytest.approx(0.75)
    assert values["x_goodput_1.5_more"] == pytest.approx(0.15)
    assert values["x_goodput_4_without"] == pytest.approx(0.3)
    assert values["x_completion_mean_low"] < 0.75 < values["x_completion_mean_high"]
    assert (values["x_completion_mean_s_without"], values["x_completion_mean_s_with"]) == (55.0, 30.0)


def test_the_knee_is_of_engines_that_have_what_ours_have_beside_the_plugin() -> None:
    asked: set[str] = set()

    def run(texts: Sequence[str], per_h: float, _: Sequence[int]) -> list[list[Found]]:
        asked.update(texts)
        return [[{"slowdown_mean": 1.0 if per_h < 150 else 9.0}], [{"slowdown_mean": 1.0}]]

    assert knee_per_h(run, "+offload", 40.0) == pytest.approx(150.0, rel=0.1)
    assert asked == {"affinity+offload", "infinite-kv"}
