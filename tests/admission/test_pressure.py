"""Pressure: useful state that is thrown away, tools that take longer; cycles of steps."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.cpu_pressure import CpuPressure, CpuReading
from gateway.admission.gpu_pressure import GpuPressure, loss_that_is_overload
from gateway.budgets.repeats import MAX_CYCLE, Cycles
from gateway.domain.agent_key import AgentKey
from gateway.domain.engine import EngineSignals, HostSignals
from gateway.domain.ids import NOBODYS, ReplicaId, TenantId

A, B = ReplicaId("a"), ReplicaId("b")


def read(gpu: GpuPressure, now=0.0):
    return gpu.read(sessions=10, feedback_s=10.0, now=now)


def warm(gpu: GpuPressure, turns: int, *, left=10_000, found=10_000):
    for _ in range(turns):
        gpu.saw_turn(left, found)


def test_nothing_is_known_at_first():
    gpu = GpuPressure()
    reading = read(gpu)
    assert (reading.pressure, reading.reason) == (0.0, "none") and gpu._loss() is None


def test_lost_state_is_pressure():
    gpu = GpuPressure()
    warm(gpu, 4, found=0)
    assert read(gpu).pressure == 0.0  # too few turns to say
    warm(gpu, 4)
    reading = read(gpu)
    assert reading.reason == "state_lost" and gpu._loss() is not None
    assert reading.loss == pytest.approx(0.5, abs=0.02) and reading.pressure > 1.0


def test_only_more_loss_than_was_reckoned_with_is_pressure():
    def pressure(expected_recompute: float) -> float:
        gpu = GpuPressure()
        gpu.read(sessions=10, feedback_s=1e6, now=0.0)
        for _ in range(20):  # 10 s of 100 s are lost
            gpu.saw_turn(10_000, 10_000 - 1000 - 256, token_s=0.5e-3)
        reading = gpu.read(sessions=10, expected_recompute=expected_recompute, feedback_s=1e6, now=100.0)
        assert gpu._loss() is not None
        return reading.pressure

    assert pressure(0.2) == 0.0
    assert pressure(0.05) == pytest.approx(0.5 * pressure(0.0), rel=1e-2)


def test_what_is_lost_counts_by_the_time_that_it_takes_to_compute_it_again():
    def pressure(token_s: float | None, *, sessions=10, replicas=1) -> float:
        gpu = GpuPressure()
        gpu.read(sessions=sessions, feedback_s=1e6, now=0.0)
        for _ in range(20):
            gpu.saw_turn(10_000, 10_000 - 1000 - 256, token_s=token_s)
        return gpu.read(sessions=sessions, replicas=replicas, feedback_s=1e6, now=100.0).pressure

    # Twenty thousand tokens were lost: 10 s of 100 s.
    assert pressure(0.5e-3) == pytest.approx(0.1 / loss_that_is_overload(10), rel=1e-3)
    assert pressure(0.5e-4) == pytest.approx(pressure(0.5e-3) / 10, rel=1e-3)
    assert pressure(0.5e-3, sessions=20) == pytest.approx(2 * pressure(0.5e-3), rel=1e-3)
    assert pressure(0.5e-3, replicas=2) == pytest.approx(pressure(0.5e-3) / 2, rel=1e-3)
    assert pressure(None) == pytest.approx(0.1 / loss_that_is_overload(10), rel=1e-3), (
        "tokens, for want of times"
    )


def test_a_few_blocks_are_no_loss():
    gpu = GpuPressure()
    warm(gpu, 10, found=9_800)
    gpu.saw_turn(0, 0)
    assert read(gpu).pressure == 0.0 and gpu._loss() is not None


def test_old_evidence_fades_and_a_change_starts_afresh():
    gpu = GpuPressure()
    warm(gpu, 20, found=0)
    assert read(gpu, now=0.0).pressure > 1.0
    assert read(gpu, now=1000.0).pressure == 0.0 and gpu._loss() is None
    warm(gpu, 20, found=0)
    gpu.start_afresh()
    assert read(gpu, now=1000.0).pressure == 0.0


def test_turns_that_have_become_so_slow_that_few_end_are_seen_all_the_same():
    gpu, now = GpuPressure(), 0.0
    for _ in range(12):  # two in three feedback times, and each computes everything again
        now += 15.0
        gpu.saw_turn(100_000, 0, token_s=0.25e-3)
        _ = read(gpu, now=now)
    reading = read(gpu, now=now)
    assert gpu._loss() is not None and reading.pressure > 1.0 and reading.reason == "state_lost"


def test_engines_without_cached_tokens_tell_by_their_counters():
    gpu = GpuPressure()
    gpu.engine_reported(A, EngineSignals(prefix_hit=1000))
    for _ in range(12):
        gpu.saw_turn(10_000, None)
    assert gpu._loss() is None  # no hits at all: perhaps it has no such cache
    gpu.engine_reported(A, EngineSignals(prefix_hit=1000 + 30_000))
    assert read(gpu).loss == pytest.approx(0.75)
    gpu.engine_reported(A, EngineSignals(prefix_hit=50))  # it was started anew
    assert read(gpu).loss == pytest.approx(0.75)


def test_preemptions_are_counted_per_turn():
    gpu = GpuPressure()
    gpu.engine_reported(A, EngineSignals(preemptions=5))
    gpu.engine_reported(A, EngineSignals(preemptions=9))
    gpu.engine_reported(B, EngineSignals(preemptions=100))  # its first word
    assert read(gpu).pressure == 0.0
    warm(gpu, 10)
    assert read(gpu).reason == "preemptions" and read(gpu).pressure == pytest.approx(4.0)


def test_first_turns_count_among_those_that_preemptions_are_held_against():
    gpu = GpuPressure()
    gpu.engine_reported(A, EngineSignals(preemptions=0))
    for _ in range(1_000):
        gpu.saw_turn()
    warm(gpu, 10)
    gpu.engine_reported(A, EngineSignals(preemptions=10))
    assert read(gpu).pressure < 0.11


def test_a_queue_behind_a_full_cache_is_pressure_and_one_behind_long_prompts_is_not():
    gpu = GpuPressure()
    gpu.engine_reported(A, EngineSignals(waiting=10, running=2, kv_used=0.5))
    assert read(gpu).pressure == 0.0
    gpu.engine_reported(A, EngineSignals(waiting=10, running=2, kv_used=0.97))
    assert read(gpu).reason == "kv_full" and read(gpu).pressure > 1.0
    gpu.replica_left(A)
    gpu.replica_left(B)
    assert read(gpu).pressure == 0.0


def test_capacity_is_that_of_the_replicas_that_are_up():
    gpu = GpuPressure()
    assert gpu.capacity([A, B]) is None
    gpu.engine_reported(A, EngineSignals(kv_tokens=1000, host_kv_tokens=1500))
    assert gpu.capacity([A]) == (1000, 500)
    assert gpu.capacity([A, B]) == (2000, 1000)  # one that does not say is like the others
    gpu.engine_reported(B, EngineSignals(kv_tokens=3000))
    assert gpu.capacity([A, B]) == (4000, 500)
    assert gpu.capacity([B]) == (3000, 0)
    gpu.engine_reported(B, EngineSignals(waiting=1))
    assert gpu.capacity([A, B]) == (2000, 1000)


def test_the_hosts_memory_counts_beyond_each_replicas_own_device():
    gpu = GpuPressure()
    gpu.engine_reported(A, EngineSignals(kv_tokens=1000, host_kv_tokens=4000))
    gpu.engine_reported(B, EngineSignals(kv_tokens=3000, host_kv_tokens=500))
    assert gpu.capacity([A, B]) == (4000, 3000)  # and not 500: B's device makes up for nothing on A's host
    assert gpu.capacity([A, B], host_tokens=9000) == (4000, 3000)  # they say it themselves
    gpu.engine_reported(B, EngineSignals(kv_tokens=3000))
    assert gpu.capacity([A, B], host_tokens=9000) == (4000, 9000)


def test_of_many_sessions_less_loss_is_too_much():
    assert loss_that_is_overload(10) == pytest.approx(0.1)
    assert loss_that_is_overload(20) == pytest.approx(0.05)
    assert loss_that_is_overload(1000) == 0.02
    assert loss_that_is_overload(0) == loss_that_is_overload(3) == 0.25


def usual(tools: CpuPressure, calls=300, *, active=10, seed=1, slower=1.0) -> None:
    """Quick and slow tools, with durations that vary by a factor of a few."""
    rng = random.Random(seed)
    for _ in range(calls):
        name, typical_s = rng.choice([("grep", 0.2), ("bash", 3.0), ("pytest", 40.0)])
        tools.active = active
        tools.saw_tool((name,), slower * typical_s * rng.lognormvariate(0.0, 1.0))


def cpu_limit(tools: CpuPressure, admitted: int, reading: CpuReading) -> float:
    return tools.limits(admitted, reading)[1]


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
    assert cpu_limit(tools, 30, reading) < 20


def test_slow_tools_while_few_run_are_their_own_doing():
    tools = CpuPressure()
    usual(tools)
    usual(tools, 40, active=2, slower=5.0, seed=2)
    assert tools.read(now=0.0).pressure == 0.0
    assert cpu_limit(tools, 30, tools.read(now=0.0)) == float("inf")


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
    assert cpu_limit(tools, 300, reading) == pytest.approx(1.25 * 300 / 3)
    assert cpu_limit(tools, 0, reading) == 1.0


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
    assert reading.pressure >= 1.0 and cpu_limit(tools, 100, reading) == 32.0
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
    assert reading.pressure == 0.0 and cpu_limit(tools, 30, reading) == float("inf")
    assert tools.is_light(AgentKey(NOBODYS, 7)), "it does not wait while the tools of others are slow"


def by_hand(steps: list[int]) -> int:
    """How often the newest cycle of any length came in a row."""
    most = 1
    for length in range(1, MAX_CYCLE + 1):
        cycle, count = steps[-length:], 0
        while len(cycle) == length and steps[len(steps) - length * (count + 1) :][:length] == cycle:
            count += 1
            if length * (count + 1) > len(steps):
                break
        most = max(most, count)
    return most


@given(st.lists(st.integers(1, 3), min_size=1, max_size=40))
def test_the_newest_cycle_is_counted(steps):
    cycles = Cycles()
    for step in steps:
        cycles.saw(step)
    assert cycles.count == by_hand(steps)
