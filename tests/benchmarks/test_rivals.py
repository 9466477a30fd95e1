"""What is read of AIPerf, of vLLM's benchmark and of engines, and how Turnpike's figures are judged."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.processes import BenchmarkError
from benchmarks.rivals import agents, aiperf, chats
from benchmarks.rivals.aiperf import Load
from benchmarks.rivals.arms import OURS
from benchmarks.rivals.chats import Row
from benchmarks.rivals.judging import COLD, Figures, judge
from benchmarks.stock_engines import LONGEST, PrefixCache
from benchmarks.verdict import Verdict

EXPORT = Path(__file__).with_name("aiperf_export.json").read_bytes()
"""AIPerf 0.13.0 of 24 requests, half of which went to a port where nobody listens, less what nobody reads."""
RECORDS = b"""\
{"metadata": {"x_correlation_id": "a", "credit_issued_ns": 1000000000, "request_end_ns": 2000000000}}
{"metadata": {"x_correlation_id": "b", "credit_issued_ns": 1000000000, "request_end_ns": 1500000000}}
{"metadata": {"x_correlation_id": "a", "credit_issued_ns": 3000000000, "request_end_ns": 4500000000}}
"""
METRICS = """\
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 18900.0
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7955205712785923e+09
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 11296.0
vllm:external_prefix_cache_queries_total{engine="0",model_name="tiny"} 7.0
"""


def test_the_export_of_a_run_half_of_which_failed():
    seen = aiperf.read(EXPORT, RECORDS)
    assert (seen.duration_s, seen.requests_per_s, seen.ttft_p99_ms, seen.answered) == (
        *(3.6404, 3.2838, 515.2225, 12),
    )
    assert seen.completion_mean_s == 2.0
    load = Load(pause_s=0.2, concurrency=4, conversations=6, turns=4)
    assert chats.figures(seen, load, hit_rate=0.5, strangers=0.0)["failed"] == 12
    found = json.loads(EXPORT)
    del found["time_to_first_token"]
    with pytest.raises(BenchmarkError, match=r"time_to_first_token.*ClientConnectorError"):
        aiperf.read(json.dumps(found).encode(), RECORDS)
    with pytest.raises(BenchmarkError, match="cancelled"):
        aiperf.read(json.dumps(json.loads(EXPORT) | {"was_cancelled": True}).encode(), RECORDS)


def test_the_beginning_of_a_trace_is_what_the_engines_can_take(tmp_path):
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [0, 1]},
        {"timestamp": 1000, "input_length": LONGEST, "output_length": 20, "hash_ids": list(range(16))},
        {"timestamp": 44_000, "input_length": 700, "output_length": 20, "hash_ids": [0, 2]},
        {"timestamp": 46_000, "input_length": 800, "output_length": 20, "hash_ids": [0, 3]},
    ]
    trace = tmp_path / "trace.jsonl.gz"
    trace.write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode()))
    found = chats.beginning(trace, tmp_path / "first.jsonl")
    assert found.requests == 2
    assert [json.loads(line)["input_length"] for line in found.file.read_text().splitlines()] == [600, 700]
    trace.write_bytes(gzip.compress(json.dumps(rows[1]).encode()))
    with pytest.raises(BenchmarkError, match="no request"):
        chats.beginning(trace, tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("text", "row", "name"),
    [
        ("4", Row(4.0, 20, 20), "4s."),
        ("0.15:8", Row(0.15, 8, 8), "0.15s."),
        ("0.15:8:24", Row(0.15, 8, 24), "0.15s_of_24."),
        ("agentic:8:12", Row(None, 8, 12), "agentic."),
    ],
)
def test_rows_are_pauses_or_agents(text, row, name):
    assert Row.read(text) == row
    assert row.name == name


def test_hits_are_those_since_then_of_all_engines():
    before = PrefixCache.read([METRICS, METRICS])
    assert before == PrefixCache(queries=37_800, hits=22_592)
    more = METRICS.replace("18900.0", "19900.0").replace("11296.0", "12046.0")
    assert PrefixCache.read([METRICS, more]).hit_rate_since(before) == 0.75
    with pytest.raises(BenchmarkError, match="vllm:prefix_cache_queries"):
        PrefixCache.read(["vllm:something_else 3"])


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
