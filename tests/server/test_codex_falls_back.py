"""Codex, unmodified, told that its provider speaks WebSocket: it is refused once, and asks by HTTP."""

import asyncio
import os
from pathlib import Path

import pytest

from demo.install import KIT, install_agents
from demo.processes import Children
from tests.server.bench import Bench
from tests.server.mcp_model import ScriptedModel

pytestmark = [pytest.mark.nightly, pytest.mark.agents, pytest.mark.timeout(700)]


async def run_codex(bench: Bench, home: Path, prompt: str) -> str:
    await install_agents(Children(f"test-{home}"), home, print, KIT)
    base_url = f"http://127.0.0.1:{bench.gateway.listener.port}/v1"
    provider = (
        f'{{name="x",base_url="{base_url}",env_key="KEY",wire_api="responses",supports_websockets=true}}'
    )
    chosen = ["-c", 'model_provider="x"', "-c", f"model_providers.x={provider}", "-m", "m"]
    free = "--dangerously-bypass-approvals-and-sandbox"
    codex = await asyncio.create_subprocess_exec(
        KIT.node_program("codex"),
        *["exec", "--skip-git-repo-check", free, "--json", *chosen, prompt],
        env={**os.environ, "HOME": str(home), "KEY": "any", "NO_PROXY": "*"},
        cwd=home,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed = (await codex.communicate())[0].decode()
    assert '"done"' in printed and codex.returncode == 0, printed
    assert "Reconnecting" not in printed
    return printed


async def test_codex_asks_by_http_at_once(start, tmp_path):
    bench = await start(limits={"drain_rejected_body_s": 0.1}, script=ScriptedModel("", []).script)
    printed = await run_codex(bench, tmp_path, "Say something.")
    assert "failed to connect to Responses WebSocket" in printed, "else it never tried"
    lines = [request.first_line for request in bench.backend.seen]
    assert lines == [b"POST /v1/responses HTTP/1.1"]
