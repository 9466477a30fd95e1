"""Durations and sizes of tools, by agent type and tool."""

from typing import Any

import msgspec

from gateway.tool_probe.durations import Durations, DurationsConfig

A, B = 11, 22


def durations(**settings: Any) -> Any:
    return Durations(msgspec.convert(settings, DurationsConfig))


def test_nothing_is_known_at_first():
    known = durations()
    assert known.quantile_s(A, ["bash"], 0.95) is None and known.quantile_s(A, [], 0.95) is None
    assert known.observation_bytes(A, ["bash"]) == 0.0
    known.add(A, [], 1.0)
    assert len(known) == 0


def test_each_agent_type_has_its_own_and_lends_to_others():
    known = durations()
    for _ in range(60):
        known.add(A, ["bash"], 1.0, observation_bytes=400)
        known.add(B, ["bash"], 100.0, observation_bytes=4000)
    assert known.quantile_s(A, ["bash"], 0.95) < 2.0 < 50.0 < known.quantile_s(B, ["bash"], 0.95)
    assert known.quantile_s(99, ["bash"], 0.95) > 50.0  # as long as for anybody
    assert known.quantile_s(99, ["never"], 0.95) > 50.0
    assert known.observation_bytes(A, ["bash", "bash"]) < 1000 < known.observation_bytes(B, ["bash"])


def test_a_batch_teaches_of_its_slowest_call():
    known = durations()
    for _ in range(10):
        known.add(A, ["read"], 0.1)
        known.add(A, ["build"], 60.0)
    for _ in range(10):
        known.add(A, ["read", "build"], 61.0)
    assert known.of(A, "read").calls == 10 and known.of(A, "build").calls == 20
    assert known.slowest(A, ["read", "build", "read"]) == "build"
    assert known.quantile_s(A, ["read", "build"], 0.5) > 30.0


def test_failures_and_averages():
    known = durations()
    for number in range(100):
        known.add(A, ["bash"], 2.0, has_failed=number % 2 == 0)
    assert 0.2 < known.of(A, "bash").failed < 0.8 and abs(known.of(A, "bash").lately_s - 2.0) < 1e-6


def test_memory_is_bounded_and_long_gaps_are_cut():
    known = durations(max_tools=4, max_s=10.0)
    for number in range(20):
        known.add(number + 1, [f"t{number}"], 1e6)
    assert len(known) == 4 and known.quantile_s(1, ["x"], 0.99) < 200.0
