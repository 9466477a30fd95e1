"""The points of the benchmark for harm, what is played at one, and what is made of it."""

import pytest

from benchmarks.harmless import (
    ENGINES,
    LONGEST,
    QUICK,
    Played,
    Point,
    Recorded,
    chosen,
    grid,
    judge,
    laid_out,
    sessions,
    table,
)
from benchmarks.processes import BenchmarkError
from benchmarks.verdict import Verdict
from lab.workload.trace.files import write_workload
from lab.workload.trace.format import Header, check

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


def test_no_session_is_longer_than_a_context_may_be():
    longest = max((point for point in grid()), key=lambda point: point.context)
    turns = [turn for each in sessions(longest, 100, 200) for turn in each.threads[0].turns]
    assert LONGEST > max(turn.input_tokens for turn in turns) > 0.8 * LONGEST
    assert all(not each.threads[0].turns[-1].tools for each in sessions(longest, 100, 200))


def test_sessions_of_a_file_come_as_often_as_fits_their_length(tmp_path):
    path = tmp_path / "file.jsonl"
    point = Point("h200", 4.0, 40_000, 1.5, "tools", False)
    header = Header(name="file")
    write_workload(str(path), header, sessions(point, 60, 200))
    asked = Recorded(path, "h200", 1.5)
    recorded, of_grid = laid_out(asked), laid_out(point)
    assert asked.name == "file_h200_x1.5" and len(recorded.setting.workload) == 60
    assert recorded.setting.sessions == pytest.approx(of_grid.setting.sessions, rel=0.2)
    assert recorded.per_h == pytest.approx(of_grid.per_h, rel=0.3) and recorded.caps == of_grid.caps


def test_points_are_drawn_or_named():
    assert chosen(["tiny_4s_3500_x3_tools"], points=1, draw=1) == [QUICK[0]]
    assert len(set(chosen(None, points=7, draw=1))) == 7
    assert chosen(None, points=7, draw=1) != chosen(None, points=7, draw=2)
    with pytest.raises(BenchmarkError, match="no point"):
        chosen(["nowhere"], points=1, draw=1)


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
    assert "| **1.05** · 1.00 | 1.00 · 0.95 |" in table({POINT: played})


def test_the_longer_of_both_counts():
    played = Played(
        none=figures(80, 60, 2.0), windows=[], ours=figures(80, 60, 2.0), learned=figures(88, 60, 2.0)
    )
    assert played.most_to_best == pytest.approx(1.1)


def test_where_no_admission_does_not_thrash_first_tokens_may_be_a_bit_later():
    played = Played(
        none=figures(80, 60, 2.0),
        windows=[figures(90, 60, 9.0)],
        ours=figures(80, 60, 2.9),
        learned=figures(80, 60, 2.9),
    )
    verdict = Verdict()
    judge(verdict, POINT, played)
    assert not played.thrashes and not verdict.missed
