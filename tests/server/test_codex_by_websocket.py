"""Codex, unmodified, told that its provider speaks WebSocket: where the backend does, it works over one;
where it does not, it is refused once, and asks by HTTP."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from demo.install import KIT, install_agents
from demo.processes import Children
from gateway.domain import records as rec
from tests.server.bench import STREAM_HEAD, Bench, Exchange, answer
from tests.server.test_early_tools import SAID, Responses, encoded
from tests.server.websocket_bench import Socket, Speaker, events, records_of

pytestmark = [pytest.mark.nightly, pytest.mark.agents, pytest.mark.timeout(700)]


async def run_codex(bench: Bench, home: Path, prompt: str) -> str:
    """What it prints."""
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
    assert SAID in printed and codex.returncode == 0, printed
    assert "Reconnecting" not in printed
    return printed


async def test_codex_asks_by_http_at_once(start, tmp_path):
    bench = await start(limits={"linger_s": 0.1})

    async def script(exchange: Exchange) -> None:
        if exchange.request.first_line.startswith(b"GET"):
            await exchange.send(answer(b"{}", status=b"404 Not Found"))
        else:
            await exchange.send(STREAM_HEAD + encoded(*Responses.ends) + b"0\r\n\r\n")

    bench.backend.script = script
    printed = await run_codex(bench, tmp_path, "Say something.")
    assert "failed to connect to Responses WebSocket" in printed, "else it never tried"
    lines = [request.first_line for request in bench.backend.seen]
    assert lines == [b"GET /v1/responses HTTP/1.1", b"POST /v1/responses HTTP/1.1"]


async def test_codex_works_over_a_websocket(start, tmp_path):
    """It runs a command, brings its result in the same connection, and gets its answer there."""
    bench = await start(backend=Speaker)
    records = records_of(bench)
    [backend] = [each for each in bench.backends if isinstance(each, Speaker)]

    async def turn(speaker: Speaker, socket: Socket, asked: Any) -> None:
        results = [each for each in asked["input"] if each["type"] == "function_call_output"]
        name = f"resp_{len(speaker.asked)}"
        if asked.get("generate") is False:  # it warms the connection up
            told = events(name)
        elif not results:
            tools = {each.get("name") for each in asked["tools"]} if asked.get("tools") else set()
            tool, arguments = "exec_command", {"cmd": "echo made-by-codex > made.txt"}
            assert not tools or tool in tools, tools
            call = {"type": "function_call", "id": "fc_1", "call_id": "call_5b1f09d2c3a84e77", "name": tool}
            told = events(name, {**call, "arguments": json.dumps(arguments)})
        else:
            told = events(name, text=SAID)
        for event in told:
            await socket.send_json(event)

    backend.turn = turn
    await run_codex(bench, tmp_path, "Make a file.")
    assert (tmp_path / "made.txt").read_text() == "made-by-codex\n"
    assert len(backend.handshakes) == 1, "one connection for all"
    assert backend.handshakes[0].headers["OpenAI-Beta"].startswith("responses_websockets=")
    assert any(each.get("previous_response_id") for each in backend.asked), "it goes on from what was said"
    arrived = [each for each in records if isinstance(each, rec.TurnArrived)]
    assert len(arrived) == len(backend.asked) and len({each.session for each in arrived}) == 1
    assert all(each.outcome == "finished" for each in records if isinstance(each, rec.GpuEnd))
    assert [each.names for each in records if isinstance(each, rec.ToolEnd)] == [("exec_command",)]
