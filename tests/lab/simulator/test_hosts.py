"""Tools on a host with so many cores: processor sharing, against an oracle that takes tiny steps."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.simulator.hosts import HostProbe, ToolHost
from lab.simulator.kernel import Kernel


def play(cores: float, tools: list[tuple[float, float, float]]) -> list[float]:
    kernel = Kernel()
    host = ToolHost(kernel, cores)
    ends = [-1.0] * len(tools)

    def end(number: int) -> None:
        ends[number] = kernel.now

    for number, (start_s, work_s, wants) in enumerate(tools):
        kernel.at(start_s, host.run, work_s, wants, partial(end, number))
    kernel.run()
    assert host.demand_cores == 0
    return ends


def test_the_rate_changes_as_tools_come_and_go():
    # Alone until 1, then at half speed; the second is done at 3, and the first has half a second left.
    assert play(1, [(0.0, 2.5, 1.0), (1.0, 1.0, 1.0)]) == [3.5, 3.0]


def test_cores_in_use_are_counted():
    kernel = Kernel()
    host = ToolHost(kernel, 2)
    for _ in range(4):
        host.run(1.0, 1.0, lambda: None)
    kernel.run()
    assert kernel.now == 2.0
    assert host.busy_core_s == pytest.approx(4.0)


def test_a_host_that_slows_down():
    kernel = Kernel()
    host = ToolHost(kernel, 1)
    ends: list[float] = []
    host.run(2.0, 1.0, lambda: ends.append(kernel.now))
    host.run(2.0, 0.0, lambda: ends.append(kernel.now))
    kernel.at(1.0, host.set_speed, 0.2)
    kernel.run()
    assert ends == [2.0, pytest.approx(6.0)]
    assert host.busy_core_s == pytest.approx(6.0)


def test_a_probe_says_how_many_want_a_core():
    kernel = Kernel()
    told: list[Any] = []
    host = ToolHost(kernel, 2)
    HostProbe("h", host, kernel, told.append).begin()
    host.run(1.0, 3.0, lambda: None)
    kernel.at(2.5, kernel.stop)
    kernel.run()
    assert [(e.host, e.signals.cores, round(e.signals.runnable, 6)) for e in told] == [
        ("h", 2, 3.0),
        ("h", 2, 1.5),
    ]


TOOLS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 5), st.sampled_from([0, 1, 2, 5])), min_size=1, max_size=6
)


@given(st.sampled_from([1, 2, 3, 8]), TOOLS)
def test_as_in_tiny_steps(cores: int, tools: list[tuple[int, int, int]]):
    ends = play(cores, [(float(start), float(work), float(wants)) for start, work, wants in tools])
    for end, expected in zip(ends, in_tiny_steps(cores, tools), strict=True):
        assert end == pytest.approx(expected, abs=0.1)


def in_tiny_steps(cores: int, tools: list[tuple[int, int, int]]) -> list[float]:
    dt = 1 / 64
    left = [float(work) for _, work, _ in tools]
    ends = [float(start) if work == 0 else None for start, work, _ in tools]
    tick = 0
    while any(end is None for end in ends):
        now = tick * dt
        alive = [n for n, (start, _, _) in enumerate(tools) if start <= now and ends[n] is None]
        demand = sum(tools[n][2] for n in alive)
        for n in alive:
            left[n] -= dt * (min(1.0, cores / demand) if tools[n][2] else 1.0)
            if left[n] <= 1e-9:
                ends[n] = now + dt
        tick += 1
    return [end for end in ends if end is not None]
