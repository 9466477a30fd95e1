"""What is read of AIPerf and of engines, and what is made of it, without anything live."""

import argparse
import json
from pathlib import Path

import msgspec
import pytest
from benchmarks.aiperf import Load
from benchmarks.harmless_live import NONE, OURS, ROWS, Measured, arms_of, judge, rows_of, run_row, tree_of

from benchmarks import aiperf
from benchmarks.processes import ROOT, BenchmarkError
from benchmarks.stock_engines import PrefixCache
from benchmarks.verdict import Verdict

EXPORT = Path(__file__).with_name("aiperf_export.json").read_bytes()
"""AIPerf 0.13.0 of 24 requests, half of which went to a port where nobody listens, less what nobody reads."""

METRICS = """\
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 18900.0
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7955205712785923e+09
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 11296.0
vllm:external_prefix_cache_queries_total{engine="0",model_name="tiny"} 7.0
"""


def test_the_export_of_a_run_half_of_which_failed():
    seen = aiperf.read(EXPORT)
    assert seen == aiperf.Profile(
        duration_s=3.6404,
        requests_per_s=3.2838,
        ttft_mean_ms=252.8959,
        ttft_p50_ms=163.7709,
        ttft_p90_ms=462.7291,
        ttft_p99_ms=515.2225,
        answered=12,
    )
    load = Load(pause_s=0.2, concurrency=4, conversations=6, turns=4)
    assert Measured.of(seen, load, hit_rate=0.5).failed == 12


def test_an_export_without_answers_is_no_measurement():
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
    assert before.hit_rate_since(before) == 0
    with pytest.raises(BenchmarkError, match="vllm:prefix_cache_queries"):
        PrefixCache.read(["vllm:something_else 3"])


def measured(duration_s: float = 100.0, ttft_ms: float = 200.0, failed: int = 0, p99_ms: float = 1_000.0):
    return Measured(
        duration_s=duration_s,
        requests_per_s=600 / duration_s,
        ttft_mean_ms=ttft_ms,
        ttft_p50_ms=ttft_ms,
        ttft_p90_ms=ttft_ms,
        ttft_p99_ms=p99_ms,
        hit_rate=0.8,
        failed=failed,
    )


def missed(pause_s: float, ours: Measured, none: Measured | None = None, **others: Measured) -> list[str]:
    verdict = Verdict()
    judge(pause_s, {NONE: none or measured(), OURS: ours, **others}, verdict)
    return verdict.missed


def test_with_long_pauses_it_is_no_slower_than_the_best():
    assert missed(4, measured(102, 209, p99_ms=1_190)) == []
    assert missed(4, measured(104)) == ["4s.duration_to_best"]
    assert missed(1.5, measured(ttft_ms=211)) == ["1.5s.ttft_mean_to_best"]
    assert missed(1.5, measured(), vllm_router=measured(90)) == ["1.5s.duration_to_best"]
    assert missed(4, measured(p99_ms=1_210)) == ["4s.ttft_p99_to_none"]
    assert missed(0.5, measured(p99_ms=1_210)) == []


def test_with_the_shortest_pause_it_gains():
    assert missed(0.15, measured(100 / 1.16, ttft_ms=5_000)) == []
    assert missed(0.15, measured(100 / 1.14)) == ["0.15s.throughput_to_none"]


def test_nobody_fails_or_waits_too_long():
    assert missed(0.5, measured(failed=1)) == ["0.5s.failed"]
    assert missed(0.5, measured(), measured(failed=2)) == ["0.5s.failed"]
    late = measured(p99_ms=10_001)
    assert missed(0.5, late) == ["0.5s.turnpike.ttft_p99_ms"]
    assert missed(0.5, measured(), late) == []


def test_an_arm_alone_is_only_told():
    verdict = Verdict()
    judge(4, {OURS: measured()}, verdict)
    assert verdict.missed == [] and verdict.figures["4s.turnpike.duration_s"].value == 100
    assert not any("_to_" in name for name in verdict.figures)


def test_a_row_is_the_medians_of_rounds_that_each_begin_with_another_arm(monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []

    def run_arm(arm: str, *_: object) -> Measured:
        order.append(arm)
        return measured(duration_s=len(order), failed=1)

    monkeypatch.setattr("benchmarks.harmless_live.run_arm", run_arm)
    names = {name: name for name in ("a", "b", "c")}
    found = run_row(names, Load(pause_s=4, concurrency=4), [], Path(), rounds=3, first=1)  # type: ignore[arg-type]
    assert order == ["b", "c", "a", "c", "a", "b", "a", "b", "c"]
    assert {name: each.duration_s for name, each in found.items()} == {"a": 5, "b": 6, "c": 4}
    assert all(each.failed == 3 for each in found.values())


def test_what_the_command_line_names():
    assert rows_of("4,0.15") == {4: 40, 0.15: 40} and rows_of("2:30,0.5") == {2: 30, 0.5: ROWS[0.5]}
    assert arms_of("turnpike,round_robin") == (OURS, NONE)
    assert tree_of(str(ROOT)) == ROOT
    for read, text in ((rows_of, "2"), (arms_of, "nginx"), (tree_of, "/")):
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)


def test_aiperf_loads_the_tokenizer_from_its_directory_and_asks_no_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    environment = aiperf._environment(tmp_path)
    assert "HF_HUB_OFFLINE" not in environment and "HTTPS_PROXY" not in environment
    assert environment["HF_ENDPOINT"] == "http://127.0.0.1:9"
    load = Load(pause_s=0.15, concurrency=40)
    command = aiperf._command(load, ["http://a", "http://b"], tmp_path, "tiny", Path("/model"))
    said = " ".join(command)
    assert "--url http://a --url http://b" in said and "--tokenizer /model" in said
    assert "--conversation-turn-delay-mean 150 " in said and "max_tokens:30" in said


def test_every_figure_has_a_name_in_the_verdict():
    verdict = Verdict()
    judge(4, {NONE: measured(), OURS: measured()}, verdict)
    for name in msgspec.structs.asdict(measured()):
        assert f"4s.{OURS}.{name}" in verdict.figures
