"""Agent frameworks, unmodified but for two URLs: they begin their calls when an answer has ended. What early
calls save them is what the answer went on for behind its calls.
"""

import asyncio
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo.agents import Agent, Launch, environment
from tests.clients.programs import (
    FRAMEWORKS_KIT,
    MCP_SESSION_EACH_CALL,
    NEWEST_MCP,
    ONE_MCP_SESSION,
    OPENAI_AGENTS_KIT,
)
from tests.server.bench import eventually
from tests.server.mcp_bench import counted, early_calls
from tests.server.mcp_model import Calls, ScriptedModel
from tests.server.mcp_programs import SdkServer, installed, ran, sdk_server

pytestmark = [pytest.mark.nightly, pytest.mark.agents, pytest.mark.alone, pytest.mark.timeout(700)]

TOOL_S = 1.0
GOES_ON_S = 1.2
ANSWERS = 7
"""That ask for three calls each."""
MUCH_LESS_S = 0.5
NAMES = [f"{answer}{call}" for answer in range(ANSWERS) for call in "abc"]


@dataclass(frozen=True)
class Found:
    gap_s: float
    """From an answer's last token to the next request: the median."""
    early: dict[str, float]


async def found(start: Any, directory: Path, agent: Agent, server: SdkServer, *, early: bool) -> Found:
    """What an agent's work took that was done, with each call made once."""
    bench = await start(mcp=[{"name": "tools", "url": server.url, "early_tools": ["read"] if early else []}])
    reads = [{"path": name, "takes_s": TOOL_S} for name in NAMES]
    steps: list[Calls] = [[{"path": "first"}], *(reads[at : at + 3] for at in range(0, len(reads), 3))]
    model = ScriptedModel("read", steps, goes_on_s=GOES_ON_S, now=asyncio.get_running_loop().time)
    bench.backend.script = model.script
    home = directory / "home"
    home.mkdir()
    url = f"http://127.0.0.1:{bench.gateway.listener.port}"
    launch = Launch(base_url=url, model="m", prompt="Read the files.", home=home)
    said = await ran(agent.argv(launch), environment(agent, launch), home)
    assert "done" in said, said
    brought = "".join(model.results)
    assert all(f"text of {name}" in brought for name in NAMES)
    made = server.calls("read")
    assert len(made) == 1 + len(NAMES) and set(made.values()) == {1}, made
    await eventually(lambda: not early_calls(bench))
    assert await counted(bench, "turnpike_mcp_calls_joined_total") == {'server="tools"': 1.0 + len(NAMES)}
    gaps = [came - ended for came, ended in zip(model.came_s, model.ended_s, strict=True)][1:]
    gap_s = statistics.median(gaps)
    print(f"{agent.name}, early {early}: {gap_s:.3f} s ({min(gaps):.3f} to {max(gaps):.3f})")
    return Found(gap_s, await counted(bench, "turnpike_mcp_early_total"))


ALL_CLAIMED = {'outcome="claimed",server="tools"': float(len(NAMES))}


@pytest.mark.parametrize("early", [False, True], ids=["as it was", "early"])
@pytest.mark.parametrize("agent", ONE_MCP_SESSION, ids=lambda agent: agent.name)
async def test_with_one_mcp_session_it_gains(start: Any, tmp_path: Path, agent: Agent, early: bool) -> None:
    await installed(FRAMEWORKS_KIT, tmp_path)
    async with sdk_server(tmp_path) as server:
        it = await found(start, tmp_path, agent, server, early=early)
    assert it.early == (ALL_CLAIMED if early else {})
    assert it.gap_s < MUCH_LESS_S if early else it.gap_s >= TOOL_S


async def test_with_an_mcp_session_for_each_call_it_does_not(start: Any, tmp_path: Path) -> None:
    """Nobody lists tools in such a session, and it is over when its only call is."""
    await installed(FRAMEWORKS_KIT, tmp_path)
    async with sdk_server(tmp_path) as server:
        it = await found(start, tmp_path, MCP_SESSION_EACH_CALL, server, early=True)
    assert it.early == {} and it.gap_s >= TOOL_S


async def test_where_client_and_server_need_no_session_it_does_not(start: Any, tmp_path: Path) -> None:
    await installed(OPENAI_AGENTS_KIT, tmp_path)
    async with sdk_server(tmp_path) as server:
        it = await found(start, tmp_path, NEWEST_MCP, server, early=True)
    assert it.early == {} and it.gap_s >= TOOL_S


async def test_a_client_of_the_newest_revision_gains_where_its_server_has_sessions(
    start: Any, tmp_path: Path
) -> None:
    await installed(OPENAI_AGENTS_KIT, tmp_path)
    async with sdk_server(tmp_path, app="mcp_server_1.py", kit=FRAMEWORKS_KIT) as server:
        it = await found(start, tmp_path, NEWEST_MCP, server, early=True)
    assert it.early == ALL_CLAIMED and it.gap_s < MUCH_LESS_S
