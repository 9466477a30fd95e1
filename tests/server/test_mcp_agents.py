"""Claude Code and Codex, unmodified: told another MCP URL and nothing else, they work as they did."""

import json
from pathlib import Path
from typing import Any

import pytest

from demo.agents import CLAUDE_CODE, CODEX, Agent, Launch, environment
from demo.install import KIT
from tests.server.mcp_bench import counted
from tests.server.mcp_model import Calls, ScriptedModel
from tests.server.mcp_programs import installed, ran, sdk_server

pytestmark = [pytest.mark.nightly, pytest.mark.agents, pytest.mark.timeout(400)]

READS = [{"path": name, "takes_s": 0.4} for name in ("a", "b", "c")]


def command(agent: Agent, launch: Launch, mcp_url: str) -> list[str | Path]:
    if agent is CODEX:
        more = ["-c", f'mcp_servers.t.url="{mcp_url}"']
        first, verb, *rest = agent.argv(launch)
        return [first, verb, *more, *rest]
    servers = {"mcpServers": {"t": {"type": "http", "url": mcp_url}}}
    return [*agent.argv(launch), "--strict-mcp-config", "--mcp-config", json.dumps(servers)]


async def run(agent: Agent, gateway_url: str, directory: Path) -> str:
    home = directory / f"home-{agent.name}"
    home.mkdir()
    launch = Launch(base_url=gateway_url, model="m", prompt="Read the files.", home=home)
    argv = command(agent, launch, f"{gateway_url}/mcp/tools")
    return await ran(argv, environment(agent, launch), home)


@pytest.mark.parametrize("agent", [CLAUDE_CODE, CODEX], ids=lambda agent: agent.name)
async def test_its_calls_are_known_and_made_once(start: Any, tmp_path: Path, agent: Agent) -> None:
    await installed(KIT, tmp_path)
    async with sdk_server(tmp_path) as server:
        steps: list[Calls] = [[{"path": "first"}], READS, [{"path": "x", "takes_s": 0.0}, {"path": "y"}]]
        model = ScriptedModel("read", steps)
        bench = await start(mcp=[{"name": "tools", "url": server.url}], script=model.script)
        said = await run(agent, f"http://127.0.0.1:{bench.gateway.listener.port}", tmp_path)
        print(said)
        assert model.brought == 3, said
        assert [name in "".join(model.results) for name in ("text of first", "text of a", "text of c")] == [
            True
        ] * 3
        made = server.calls("read")
        assert len(made) == 6 and set(made.values()) == {1}, made
        joined = await counted(bench, "turnpike_mcp_calls_joined_total")
        assert joined == {'server="tools"': 6.0}
