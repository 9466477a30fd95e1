"""The examples, unmodified: the backend ends its answer when the first tool has begun, and not before."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from demo.install import install_agents
from demo.processes import Children
from tests.clients.programs import FRAMEWORKS_KIT
from tests.project.layout import ROOT
from tests.server.bench import Bench, eventually
from tests.server.mcp_model import Calls, ScriptedModel

ITEMS = ("pear", "fig")


async def play(bench: Bench, python: Path, example: str) -> None:
    lines: list[str] = []
    steps: list[Calls] = [[{"item": item} for item in ITEMS]]
    model = ScriptedModel("price", steps)
    model.behind_first = lambda: eventually(lambda: lines, "no tool began before its answer ended")
    bench.backend.script = model.script
    url = f"http://127.0.0.1:{bench.gateway.listener.port}"
    urls = {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url}
    keys = {"OPENAI_API_KEY": "any", "ANTHROPIC_API_KEY": "any"}
    program = await asyncio.create_subprocess_exec(
        python,
        ROOT / "examples" / f"{example}.py",
        "m",
        "What do a pear and a fig cost?",
        env={**os.environ, **urls, **keys, "NO_PROXY": "*"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert program.stdout is not None and program.stderr is not None
    complaints = asyncio.create_task(program.stderr.read())
    while line := await program.stdout.readline():
        lines.append(line.decode().strip())
    assert await program.wait() == 0, (await complaints).decode()
    await complaints
    assert sorted(lines[:2]) == sorted(f"looking for the price of {item}" for item in ITEMS)
    assert lines[2:] == ["done"]
    assert all(f"A {item} costs 12." in "".join(model.results) for item in ITEMS)
    [session] = bench.brain.sessions.sessions.newest_first()
    assert session.turns == 2


@pytest.mark.slow
@pytest.mark.parametrize("example", ["with_openai", "with_openai_responses", "with_anthropic"])
async def test_a_tool_begins_before_its_answer_ends(start, monkeypatch, example):
    monkeypatch.setattr("tests.server.bench.PATIENCE_S", 60.0)
    await play(await start(), Path(sys.executable), example)


@pytest.mark.nightly
@pytest.mark.agents
@pytest.mark.timeout(700)
@pytest.mark.parametrize("example", ["with_langgraph", "with_openai_agents"])
async def test_so_it_does_in_frameworks(start, monkeypatch, tmp_path, example):
    monkeypatch.setattr("tests.server.bench.PATIENCE_S", 60.0)
    await install_agents(Children(f"test-{tmp_path}"), tmp_path, print, FRAMEWORKS_KIT)
    await play(await start(), FRAMEWORKS_KIT.venv / "bin/python", example)
