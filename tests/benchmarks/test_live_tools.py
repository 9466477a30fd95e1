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


def test_a_tool_computes_for_as_long_as_it_takes_and_yields_to_others() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    asyncio.run(compute(Tool(name="tool", duration_s=0.3)))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert 0.3 <= used_s < 0.9
    assert os.getpriority(os.PRIO_PROCESS, 0) < 10, "only the tool yields"
