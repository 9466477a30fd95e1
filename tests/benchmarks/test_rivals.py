"""What is read of AIPerf, of vLLM's benchmark and of engines, and how Turnpike's figures are judged."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.processes import ROOT, BenchmarkError
from benchmarks.rivals import agents, aiperf, chats, multi_turn
from benchmarks.rivals.__main__ import tree_of
from benchmarks.rivals.aiperf import Load
from benchmarks.rivals.arms import NONE, OURS, arms
from benchmarks.rivals.judging import COLD, Bound, Figures, judge
from benchmarks.rivals.multi_turn import Asked
from benchmarks.stock_engines import PrefixCache
from benchmarks.verdict import Verdict

EXPORT = Path(__file__).with_name("aiperf_export.json").read_bytes()
"""AIPerf 0.13.0 of 24 requests, half of which went to a port where nobody listens, less what nobody reads."""
METRICS = """\
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 18900.0
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7955205712785923e+09
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 11296.0
vllm:external_prefix_cache_queries_total{engine="0",model_name="tiny"} 7.0
"""


def test_the_export_of_a_run_half_of_which_failed():
    seen = aiperf.read(EXPORT)
    assert (seen.duration_s, seen.requests_per_s, seen.ttft_p99_ms, seen.answered) == (
        *(3.6404, 3.2838, 515.2225, 12),
    )
    load = Load(pause_s=0.2, concurrency=4, conversations=6, turns=4)
    assert chats.figures(seen, load, hit_rate=0.5, strangers=0.0)["failed"] == 12
    found = json.loads(EXPORT)
    del found["time_to_first_token"]
    with pytest.raises(BenchmarkError, match=r"time_to_first_token.*ClientConnectorError"):
        aiperf.read(json.dumps(found).encode())
    with pytest.raises(BenchmarkError, match="cancelled"):
        aiperf.read(json.dumps(json.loads(EXPORT) | {"was_cancelled": True}).encode())


def test_hits_are_those_since_then_of_all_engines():
    before = PrefixCache.read([METRICS, METRICS])
    assert before == PrefixCache(queries=37_800, hits=22_592)
    more = METRICS.replace("18900.0", "19900.0").replace("11296.0", "12046.0")
    assert PrefixCache.read([METRICS, more]).hit_rate_since(before) == 0.75
    with pytest.raises(BenchmarkError, match="vllm:prefix_cache_queries"):
        PrefixCache.read(["vllm:something_else 3"])


def test_a_run_lasts_from_the_first_request_to_the_last_answer():
    asked = [
        Asked(ttft_ms=100, latency_ms=500, start_time_ms=2_000),
        Asked(ttft_ms=300, latency_ms=2_000, start_time_ms=1_000),
    ]
    run = multi_turn.figures(asked, 3, 0.5, 0.1)
    assert (run["requests_per_s"], run["ttft_mean_ms"], run["latency_mean_ms"]) == (1.0, 200, 1_250)


def run(mean: float, hits: float = 0.8, failed: int = 0) -> Figures:
    return {"mean": mean, "p90": 2 * mean, "hit_rate": hits, "failed": failed, "strangers": 0.0}


@pytest.mark.parametrize(
    ("ours", "missed"),
    [
        ([run(10.0), run(30.0), run(10.4)], []),
        ([run(10.6)] * 3, ["mean_to_best", "p90_to_best"]),
        ([run(10.0, hits=0.79)] * 3, ["hit_rate_to_best"]),
        ([run(10.0), run(10.0), run(10.0, failed=1)], ["failed"]),
    ],
)
def test_the_median_of_the_rounds_is_held_against_the_best_other(ours, missed):
    verdict = Verdict()
    others = {COLD: [run(1.0, hits=1.0)] * 3, "quick": [run(10.0, hits=0.7)] * 3, "slow": [run(30.0)] * 3}
    judge(verdict, "", {OURS: ours, **others}, agents.BOUNDS)
    assert verdict.missed == missed
    assert verdict.figures["slow.mean"].value == 30.0


def test_to_an_arm_it_is_compared_round_by_round():
    verdict, bound = Verdict(), Bound(figure="mean", to=NONE, at_most=1.0)
    judge(verdict, "4s.", {OURS: [run(20.0), run(11.0)], NONE: [run(40.0), run(10.0)]}, [bound])
    assert verdict.figures["4s.mean_to_none"].value == 0.8
    low, high = (verdict.figures[f"4s.mean_to_none_{side}"].value or 0.0 for side in ("low", "high"))
    assert low < 0.5 < high
    judge(alone := Verdict(), "", {OURS: [run(20.0)]}, [bound])
    assert "mean_to_none" not in alone.figures


def test_with_short_pauses_it_should_gain_and_with_long_ones_do_no_harm():
    def targets(pause_s: float) -> set[str]:
        return {each.figure for each in chats.bounds(pause_s) if each.at_most or each.at_least}

    assert targets(0.15) == {"ttft_p99_ms", "requests_per_s"}
    assert targets(4.0) == {"ttft_p99_ms", "duration_s", "ttft_mean_ms"}


def test_rows_and_arms_are_those_that_there_are():
    assert chats.rows_of("4,2:30") == {4.0: 40, 2.0: 30}
    assert chats.rows_of(None, is_quick=True) == {4.0: 40, 0.15: 40}
    assert {*agents.ARMS, *chats.ARMS, *multi_turn.ARMS} <= arms().keys()
    assert tree_of(str(ROOT)) == ROOT
    with pytest.raises(argparse.ArgumentTypeError, match="no checkout"):
        tree_of("/")
