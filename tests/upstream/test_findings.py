"""What `turnpike doctor` says of a backend, from what was seen of it."""

from typing import Any

import msgspec
import pytest

from gateway.cli.examine import BackendProbe, CacheProbe, _prefills
from gateway.cli.findings import findings
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import Abilities, ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId
from gateway.upstream.health_probes import NO_ENGINE

FACTS = ReplicaFacts(
    id=ReplicaId("a"), pool=PoolId("p"), abilities=Abilities(engine="vllm", version="0.32.0"), models=("m",)
)
WHOLE = BackendProbe(
    facts=FACTS,
    models_status=200,
    max_tokens=4096,
    plugin={"state": "awake", "blocks": {"total": 9}},
    signals=EngineSignals(kv_tokens=1000),
    cache={"enable_prefix_caching": "True", "kv_offloading_size": "8.0"},
    publishes_events=True,
    cache_probe=CacheProbe(status=200, reports_cached=True, was_cached=True),
)


def but(**fields) -> BackendProbe:
    return BackendProbe(**{name: getattr(WHOLE, name) for name in WHOLE.__struct_fields__} | fields)


def told(seen: BackendProbe, level: str) -> list[tuple[str, str | None]]:
    return [(each.what, each.do) for each in findings(seen) if each.level == level]


def test_nothing_is_missing():
    assert [each.level for each in findings(WHOLE)] == ["ok"] * 7
    assert "serves m (context 4096 tokens)" in [each.what for each in findings(WHOLE)]


@pytest.mark.parametrize(
    ("fields", "what", "do"),
    [
        ({"plugin": None}, "plugin turnpike-vllm is not loaded", "--scheduler-cls"),
        ({"plugin": {"state": "absent", "why": "no class"}}, "absent: no class", "turnpike-vllm doctor"),
        (
            {"cache": {"enable_prefix_caching": "False", "kv_offloading_size": "1"}},
            "caching is off",
            "--enable-prefix",
        ),
        ({"cache": {}}, "no KV offload", "--kv-offloading-size"),
        ({"signals": None, "cache": {}}, "/metrics is not there", "/metrics"),
        ({"publishes_events": None}, "KV events are not listened to", "kv_events = {"),
        ({"cache_probe": None}, "was not looked at", "doctor --ask"),
        (
            {"cache_probe": CacheProbe(status=200, reports_cached=False, was_cached=True)},
            "do not say",
            "--enable-prompt-tokens",
        ),
    ],
)
def test_what_is_missing_has_a_gain_and_a_flag(fields, what, do):
    (missing,) = [each for each in findings(but(**fields)) if each.level == "off"]
    assert what in missing.what and missing.gain and do in (missing.do or "")
    assert not told(but(**fields), "bad")


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"facts": None, "why_down": "refused"}, "does not answer: refused"),
        ({"models_status": 401}, "wants an API key (401)"),
        (
            {"facts": None, "why_down": f"{NO_ENGINE} (404 at /health): do that"},
            f"{NO_ENGINE} (404 at /health)",
        ),
        ({"publishes_events": False}, "nobody publishes"),
        ({"cache_probe": CacheProbe(status=500, reports_cached=False, was_cached=None)}, "answered with 500"),
    ],
)
def test_what_cannot_be_used_is_bad(fields, what):
    ((said, _),) = told(but(**fields), "bad")
    assert what in said


@pytest.mark.parametrize(("status", "is_bad"), [(500, True), (0, True), (404, False), (200, False)])
def test_a_server_that_is_no_vllm_and_cannot_answer_is_bad_too(status, is_bad):
    other = msgspec.structs.replace(FACTS, abilities=Abilities())
    asked = CacheProbe(status=status, reports_cached=False, was_cached=None)
    found = told(but(facts=other, plugin=None, signals=None, cache_probe=asked), "bad")
    assert bool(found) is is_bad and all("a request for one token" in what for what, _ in found)


@pytest.mark.parametrize("signals", [{"kv_used": 0.97}, {"kv_used": 0.4, "preemptions": 12}])
def test_a_full_cache_needs_offload_first_of_all(signals):
    lacks: dict[str, Any] = {"cache": {}, "plugin": None, "publishes_events": None}
    told_cached = CacheProbe(status=200, reports_cached=False, was_cached=True)
    seen = but(signals=EngineSignals(kv_tokens=1000, **signals), cache_probe=told_cached, **lacks)
    first, *others = [each.do or "" for each in findings(seen) if each.level == "off"]
    assert "--kv-offloading-size" in first
    assert [next(f for f in FLAGS if f in each) for each in others] == [FLAGS[0], *FLAGS[2:]]
    (full,) = [each for each in findings(seen) if "KV cache is full" in each.what]
    assert "4.7 ×" in (full.gain or "")


FLAGS = ("--enable-prompt-tokens-details", "--kv-offloading-size", "--kv-events-config", "--scheduler-cls")


def test_else_what_is_cheap_to_add_comes_first():
    told_cached = CacheProbe(status=200, reports_cached=False, was_cached=True)
    seen = but(cache={}, plugin=None, publishes_events=None, cache_probe=told_cached)
    levels = [each.level for each in findings(seen)]
    assert levels == sorted(levels, key="off".__eq__), "what is there stands before what is missing"
    flags = [each.do or "" for each in findings(seen) if each.level == "off"]
    assert [flag in each for flag, each in zip(FLAGS, flags, strict=True)] == [True] * 4


BUCKETS = """vllm:request_prefill_kv_computed_tokens_bucket{engine="0",le="1000.0",model_name="m"} 400.0
vllm:request_prefill_kv_computed_tokens_bucket{engine="0",le="10000.0",model_name="m"} 480.0
vllm:request_prefill_kv_computed_tokens_bucket{engine="0",le="+Inf",model_name="m"} 500.0
"""


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (BUCKETS, "20 prefills of over 10000 tokens among 400 of up to 1000"),
        (BUCKETS + BUCKETS.replace('"0"', '"1"'), "40 prefills of over 10000 tokens among 800 of up to 1000"),
        (BUCKETS.replace("500.0", "480.0"), ""),
        (BUCKETS.replace('"10000.0"', '"5000.0"'), ""),  # none can be as long
        ("", ""),
    ],
)
def test_long_prefills_before_short_turns_have_a_flag(metrics, said):
    found = [each for each in findings(but(prefills=_prefills(metrics))) if each.level == "off"]
    assert [each.what for each in found] == ([said] if said else [])
    assert all("--long-prefill-token-threshold 1024" in (each.do or "") for each in found)


def test_another_server_lacks_nothing_but_what_vllm_tells():
    other = but(facts=ReplicaFacts(id=FACTS.id, pool=FACTS.pool, models=("m",)), signals=None, plugin=None)
    assert [each.level for each in findings(other)] == ["ok", "off"]
