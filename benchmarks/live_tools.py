"""Tools are the bottleneck, and they are real: processes that want cores, on the machine of the gateway.

    python -m benchmarks.live_tools [--quick] [--json]

A real vLLM server on the CPU with a tiny model, agents that chat and call tools (`chat_agents.py`), and tools
that are processes which compute. Sessions come twice as fast as the cores can run their tools. The gateway as
it is by default, with a probe on the host (`turnpike probe`) and without one, against the same gateway with a
window that follows engines alone (`admission.limit_by_tool_load = false`), and against fixed caps.

A GPU would not be slowed down by tools, so they yield to the engine (`nice`); tools share cores fairly among
themselves. They compute for so many seconds of processor time, so the machine's pace matters little.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.command import judged
from benchmarks.gateway import gateway
from benchmarks.live import MODEL, Engines, Kind, drawn, played
from benchmarks.verdict import Verdict
from lab.simulator.live.chat_agents import ChatAgents, scripts, talk, vocabulary
from lab.workload.trace.format import Session, Tool

KIND: Final = Kind(
    name="tools",
    seed=31,
    turns=(4, 8),
    first_tokens=(900, 1_400),
    grows_by=(50, 200),
    output_tokens=(30, 60),
    tool_s=1.0,
    apart_s=1.0,  # `arriving` says when they really come
)
TIMES: Final = 2.0
"""What tools ask for, of what there is."""
KV_BLOCKS: Final = 20_000
"""Room for all: engines are not what is scarce."""
ENGINES_ALONE: Final = "[admission]\nlimit_by_tool_load = false\n"
CAPS: Final = (1, 2, 4)
"""Sessions for each core."""
_COMPUTES: Final = """
import sys, time, zlib
data = bytes(range(256)) * 256
while time.process_time() < float(sys.argv[1]):
    zlib.compress(data, 9)
"""
_NICE: Final = 10


async def compute(tool: Tool) -> None:
    """On a core, for as long as the tool takes if it has one of its own."""
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", str(_NICE), sys.executable, "-I", "-S", "-c", _COMPUTES, str(tool.duration_s))
    )
    if await process.wait():
        raise subprocess.SubprocessError("a tool did not run")


def arriving(sessions: list[Session], cores: int) -> list[Session]:
    """Evenly, so that their tools ask for `TIMES` as much as there is."""
    work_s = statistics.mean(
        sum(tool.duration_s for turn in each.threads[0].turns[:-1] for tool in turn.tools)
        for each in sessions
    )
    apart_s = work_s / cores / TIMES
    return [msgspec.structs.replace(each, arrival_s=number * apart_s) for number, each in enumerate(sessions)]


def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    cores = len(os.sched_getaffinity(0))
    words, failed = vocabulary(), 0
    sessions = arriving(drawn(KIND, 30 if is_quick else 48), cores)
    talks = {each.id: talk(each, words) for each in sessions}
    with ExitStack() as stack:
        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="live-tools-")))
        engines = Engines(
            stack, at, replicas=1, kv_blocks=KV_BLOCKS, scripts=scripts(talks), are_pinned=False
        )

        def mean_s(
            name: str, settings: str = "", *, has_probe: bool = False, among: list[Session] = sessions
        ) -> float:
            nonlocal failed

            def agents(client: aiohttp.ClientSession) -> ChatAgents:
                return ChatAgents(client, url, MODEL, talks)

            with gateway(engines.urls, at / name, settings, has_probe=has_probe) as url:
                seen = played(among, engines.urls, agents, compute)
            tell(f"{name}: {seen.mean:.1f} s")
            failed += seen.failed
            return seen.mean

        mean_s("warm", ENGINES_ALONE, among=sessions[:4])
        before = mean_s("engines-alone", ENGINES_ALONE)
        probed = mean_s("probed", has_probe=True)
        others = {} if is_quick else {"unprobed": mean_s("unprobed")}
        for cap in () if is_quick else CAPS:
            fixed = f'[admission]\npolicy = "session-cap"\nsession_cap = {cap * cores}\n'
            others[f"cap_of_{cap}_a_core"] = mean_s(f"cap-{cap}", fixed)
        after = mean_s("engines-alone-again", ENGINES_ALONE)
    alone = statistics.mean((before, after))
    verdict.at_least("gain", alone / probed, 1.3)
    for name, other in others.items():
        verdict.tell(f"gain_{name}", alone / other)
    if others:
        verdict.at_most("against_best_cap", probed / min(others.values()), 1.25)
    verdict.tell("engines_alone_s", alone)
    verdict.tell("engines_alone_after_to_before", after / before)
    verdict.at_most("failed", failed, 0)


if __name__ == "__main__":
    sys.exit(judged(__file__, __doc__, measure, quick="30 sessions instead of 48, and no caps"))
