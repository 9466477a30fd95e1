"""CPU pressure: tools that take longer than they used to."""

import random

import pytest

from gateway.admission.cpu_pressure import CpuPressure


def usual(tools: CpuPressure, calls=300, *, active=10, seed=1, slower=1.0) -> None:
    """Quick and slow tools, with durations that vary by a factor of a few."""
    rng = random.Random(seed)
    for _ in range(calls):
        name, typical_s = rng.choice([("grep", 0.2), ("bash", 3.0), ("pytest", 40.0)])
        tools.active = active
        tools.saw_tool((name,), slower * typical_s * rng.lognormvariate(0.0, 1.0))


def test_varied_durations_are_no_pressure():
    tools = CpuPressure()
    for seed in range(30):
        usual(tools, 30, seed=seed)
        assert tools.read().pressure < 1.0


def test_all_tools_slower_is_pressure():
    tools = CpuPressure()
    usual(tools)
    usual(tools, 40, active=30, slower=5.0, seed=2)
    reading = tools.read()
    assert reading.pressure >= 1.0 and reading.reason == "tools_slow"
    assert reading.inflation > 2.0 and reading.active == 30
    assert tools.limit(30, reading) < 20


def test_slow_tools_while_few_run_are_their_own_doing():
    tools = CpuPressure()
    usual(tools)
    usual(tools, 40, active=2, slower=5.0, seed=2)
    assert tools.read().pressure == 0.0
    assert tools.limit(30, tools.read()) == float("inf")


def test_little_evidence_is_no_pressure():
    tools = CpuPressure()
    assert tools.read().pressure == 0.0 and tools.read().reason == "none"
    tools.saw_tool(("bash",), 1.0)
    tools.saw_tool(("bash",), 1000.0)
    assert tools.read().pressure == 0.0


def test_a_host_that_reports_its_load_is_believed():
    tools = CpuPressure()
    tools.host_load = 3.0
    reading = tools.read()
    assert reading.pressure == pytest.approx(2.0) and reading.reason == "host_load"
    assert tools.limit(12, reading) == pytest.approx(5.0)
    assert tools.limit(0, reading) == 1.0


def test_names_are_bounded_and_parallel_tools_are_one():
    tools = CpuPressure()
    for number in range(600):
        tools.saw_tool((f"tool-{number}",), 0.0)
        tools.read()
    assert len(tools._usual) == 512
    tools.saw_tool(("b", "a", "b"), 1.0)
    tools.read()
    assert "a+b" in tools._usual


def test_between_two_looks_the_newest_teach():
    tools = CpuPressure()
    for number in range(600):
        tools.saw_tool((f"tool-{number}",), 0.0)
    tools.read()
    assert "tool-599" in tools._usual and "tool-0" not in tools._usual
