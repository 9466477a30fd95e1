"""CPU pressure: tools that take longer than they used to."""

import random

import pytest

from gateway.admission.cpu_pressure import CpuPressure
from gateway.domain.by_agent import AgentKey
from gateway.domain.host import HostSignals
from gateway.domain.ids import NOBODYS, TenantId


def usual(tools: CpuPressure, calls=300, *, active=10, seed=1, slower=1.0) -> None:
    """Quick and slow tools, with durations that vary by a factor of a few."""
    rng = random.Random(seed)
    for _ in range(calls):
        name, typical_s = rng.choice([("grep", 0.2), ("bash", 3.0), ("pytest", 40.0)])
        tools.active = active
        tools.saw_tool((name,), slower * typical_s * rng.lognormvariate(0.0, 1.0))


def names(tools: CpuPressure) -> set[tuple[TenantId, str]]:
    return {(owner, name) for owner, name, _ in tools._usual.items()}


def test_varied_durations_are_no_pressure():
    tools = CpuPressure()
    for seed in range(30):
        usual(tools, 30, seed=seed)
        assert tools.read(now=0.0).pressure < 1.0


def test_all_tools_slower_is_pressure():
    tools = CpuPressure()
    usual(tools)
    usual(tools, 40, active=30, slower=5.0, seed=2)
    reading = tools.read(now=0.0)
    assert reading.pressure >= 1.0 and reading.reason == "tools_slow"
    assert reading.inflation > 2.0 and reading.active == 30
    assert tools.limit(30, reading) < 20


def test_slow_tools_while_few_run_are_their_own_doing():
    tools = CpuPressure()
    usual(tools)
    usual(tools, 40, active=2, slower=5.0, seed=2)
    assert tools.read(now=0.0).pressure == 0.0
    assert tools.limit(30, tools.read(now=0.0)) == float("inf")


def test_tools_that_stay_slow_with_fewer_of_them_are_so_for_another_reason():
    tools = CpuPressure()
    usual(tools, active=10)
    usual(tools, 40, active=30, slower=5.0, seed=2)
    assert tools.read(now=0.0).pressure >= 1.0
    usual(tools, 40, active=5, slower=5.0, seed=3)
    assert tools.read(now=0.0).pressure < 1.0
    usual(tools, 40, active=12, slower=5.0, seed=4)
    assert tools.read(now=0.0).pressure < 1.0


def test_little_evidence_is_no_pressure():
    tools = CpuPressure()
    assert tools.read(now=0.0).pressure == 0.0 and tools.read(now=0.0).reason == "none"
    tools.saw_tool(("bash",), 1.0)
    tools.saw_tool(("bash",), 1000.0)
    assert tools.read(now=0.0).pressure == 0.0


def test_hosts_that_report_are_believed():
    tools = CpuPressure()
    tools.active = 24
    for host, runnable in (("a", 4.0), ("b", 20.0)):
        tools.host_reported(host, HostSignals(cores=4, runnable=runnable), now=0.0)
    reading = tools.read(now=1.0)
    assert reading.pressure == pytest.approx(4.0) and reading.reason == "host_load"
    assert tools.limit(300, reading) == pytest.approx(1.25 * 300 / 3)
    assert tools.limit(0, reading) == 1.0


def test_a_host_that_falls_silent_is_forgotten():
    tools = CpuPressure()
    tools.active = 20
    tools.host_reported("a", HostSignals(cores=1, runnable=9), now=0.0)
    tools.host_reported("b", HostSignals(cores=1, runnable=1), now=20.0)
    assert tools.read(now=25.0).host_load == 5.0
    assert tools.read(now=35.0).host_load == 1.0
    for number in range(2000):
        tools.host_reported(f"h{number}", HostSignals(cores=1, runnable=1), now=40.0)
    assert tools.read(now=40.0).cores == 1024


def test_sessions_whose_tools_find_a_core_each_are_never_too_many():
    tools = CpuPressure()
    tools.active = 4
    tools.host_reported("a", HostSignals(cores=4, runnable=80), now=0.0)  # of others
    assert tools.read(now=0.0).pressure < 1.0
    tools.active = 80
    reading = tools.read(now=0.0)
    assert reading.pressure >= 1.0 and tools.limit(100, reading) == 32.0
    tools.active = 0
    assert tools.read(now=0.0).pressure == 0.0


def test_names_are_bounded_and_parallel_tools_are_one():
    tools = CpuPressure()
    for number in range(600):
        tools.saw_tool((f"tool-{number}",), 0.0)
        tools.read(now=0.0)
    assert len(tools._usual) == 512
    tools.saw_tool(("b", "a", "b"), 1.0)
    tools.read(now=0.0)
    assert (NOBODYS, "a+b") in names(tools)


def test_a_tool_of_one_tenant_says_nothing_of_how_long_anothers_of_that_name_takes():
    tools = CpuPressure()
    for number in range(600):
        tools.active = 10 + number // 300 * 20
        tenant, lasts_s = ("quiet", 30.0) if number >= 300 else ("loud", 0.001)
        tools.saw_tool(("bash",), lasts_s, AgentKey(TenantId(tenant), 1))
        assert tools.read(now=0.0).pressure < 1e-9


def test_whose_tools_load_makes_slower_is_learned_of_each_tenant():
    tools = CpuPressure()
    quiet, loud = AgentKey(TenantId("quiet"), 1), AgentKey(TenantId("loud"), 1)
    for slower in (1.0, 9.0):
        for _ in range(20):
            tools.saw_tool(("fetch",), 1.0, quiet)
            tools.saw_tool(("fetch",), slower, loud)
        tools.active = 9
        tools.host_reported("h", HostSignals(cores=1, runnable=9), now=0.0)
        tools.read(now=0.0)
    assert tools.is_light(quiet) and not tools.is_light(loud)
    assert not tools.is_light(quiet._replace(owner=TenantId("new")))


def test_between_two_looks_the_newest_teach():
    tools = CpuPressure()
    for number in range(600):
        tools.saw_tool((f"tool-{number}",), 0.0)
    tools.read(now=0.0)
    assert (NOBODYS, "tool-599") in names(tools) and (NOBODYS, "tool-0") not in names(tools)


def test_tools_that_take_no_time_are_no_load():
    tools = CpuPressure()
    rng = random.Random(3)
    for slower in (1.0, 20.0):
        for _ in range(300):
            tools.active = 10 if slower == 1.0 else 30
            tools.saw_tool(("lookup",), slower * 0.002 * rng.lognormvariate(0.0, 1.0), AgentKey(NOBODYS, 7))
    reading = tools.read(now=0.0)
    assert reading.pressure == 0.0 and tools.limit(30, reading) == float("inf")
    assert tools.is_light(AgentKey(NOBODYS, 7)), "it does not wait while the tools of others are slow"
