"""The points of the benchmark for harm, what is played at one, and what is made of it."""

import msgspec
import pytest

from benchmarks.harmless import ENGINES, QUICK, Played, Point, grid, judge, lines, sessions
from benchmarks.verdict import Verdict
from lab.workload.trace.format import check

POINT = Point("h200", 4.0, 40_000, 1.5, "tools", False)


def figures(mean_s: float, per_h: float, ttft_s: float) -> dict[str, float]:
    return {"completion_mean_s": mean_s, "sessions_per_h": per_h, "ttft_p99_s": ttft_s, "hit_rate": 0.5}


def test_points_have_names_of_their_own():
    names = [point.name for point in grid()]
    assert len(set(names)) == len(names) > 300
    assert {point.engine for point in QUICK} == set(ENGINES)


@pytest.mark.parametrize("who", ["tools", "people"])
def test_sessions_hold_what_the_point_says(who):
    point = Point("h200", 4.0, 40_000, 1.5, who, False)
    drawn = sessions(point, 60, 200)
    for each in drawn:
        check(each)
    turns = [turn for each in drawn for turn in each.threads[0].turns]
    assert sum(turn.input_tokens for turn in turns) / len(turns) == pytest.approx(40_000, rel=0.15)
    pauses = [tool.duration_s for turn in turns for tool in turn.tools] or [turn.pause_s for turn in turns]
    assert sum(pauses) / len(pauses) == pytest.approx(4.0, rel=0.25)
    assert drawn == sessions(point, 60, 200)


def test_ours_is_held_against_the_best_of_all():
    played = Played(
        none=figures(100, 50, 2.0),
        windows=[figures(80, 60, 30.0), figures(90, 55, 9.0)],
        ours=figures(84, 60, 3.5),
        learned=figures(80, 57, 1.9),
    )
    assert played.thrashes and played.most_to_best == pytest.approx(1.05)
    verdict = Verdict()
    judge(verdict, POINT, played)
    missed = ("mean_to_best", "ttft_p99_to_none", "learned.throughput_to_best")
    assert verdict.missed == [f"{POINT.name}.{each}" for each in missed]
    worst, best = POINT, msgspec.structs.replace(POINT, times=3.0)
    better = msgspec.structs.replace(played, ours=played.learned)
    assert [line.partition(":")[0] for line in lines({best: better, worst: played})] == [
        worst.name,
        best.name,
    ]
