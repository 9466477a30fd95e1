"""Tools of a live benchmark: as much as was asked for, and really computed."""

import asyncio
import os
import resource

import pytest

from benchmarks.live import drawn
from benchmarks.live_tools import KIND, TIMES, arriving, compute
from lab.workload.trace.format import Tool


@pytest.mark.parametrize("cores", [1, 2, 16])
def test_tools_ask_for_so_many_times_what_there_is(cores: int) -> None:
    sessions = arriving(drawn(KIND, 40), cores)
    work_s = sum(turn.tools[0].duration_s for each in sessions for turn in each.threads[0].turns[:-1])
    apart_s = sessions[1].arrival_s - sessions[0].arrival_s
    assert work_s / (len(sessions) * apart_s * cores) == pytest.approx(TIMES)
    assert [each.arrival_s for each in sessions] == pytest.approx([n * apart_s for n in range(40)])


def used_by(duration_s: float) -> float:
    """Processor time of a tool."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    asyncio.run(compute(Tool(name="tool", duration_s=duration_s)))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_tool_computes_for_as_long_as_it_takes_and_yields_to_others() -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    starts_s, used_s = used_by(0.0), used_by(0.3)
    assert 0.3 <= used_s < 0.6 + 2 * starts_s, "its duration, and what its process costs"
    assert os.getpriority(os.PRIO_PROCESS, 0) == ours, "only the tool yields"
