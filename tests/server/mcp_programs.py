"""The official SDKs' MCP servers and clients, as processes."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from demo.install import Kit, install_agents
from demo.processes import Children
from tests.clients.programs import APPS, MCP_KIT, MCP_NODE_KIT
from tests.prerequisites import require_command

_WITHIN_S = 60.0
_AGENT_WITHIN_S = 120.0


async def installed(kit: Kit, logs: Path) -> None:
    if kit.npm:
        require_command("npm", install="Node.js 20 or newer brings it")
    children = Children(f"mcp-{logs}")
    await install_agents(children, logs, lambda _: None, kit)
    children.stop_all()


class SdkServer:
    def __init__(self, port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}/mcp"
        self._log = log

    def notes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def calls(self, tool: str, what: str = "begun") -> Counter[str]:
        noted = [note for note in self.notes() if (note["tool"], note["what"]) == (tool, what)]
        return Counter(json.dumps(note["arguments"]) for note in noted)


@asynccontextmanager
async def sdk_server(
    directory: Path, *options: str, app: str = "mcp_server.py", kit: Kit = MCP_KIT
) -> AsyncIterator[SdkServer]:
    await installed(kit, directory)
    log = directory / f"calls{'-'.join(options)}"
    log.touch()
    process = await asyncio.create_subprocess_exec(
        kit.venv / "bin/python", APPS / app, log, *options, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_WITHIN_S):
            port = int(await process.stdout.readline())
        yield SdkServer(port, log)
    finally:
        process.kill()
        await process.wait()


async def ran(argv: Sequence[str | Path], env: dict[str, str], home: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=home,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_AGENT_WITHIN_S):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def python_client(url: str, mode: str, key: str = "k", *options: str) -> dict[str, Any]:
    return await _said(MCP_KIT.venv / "bin/python", APPS / "mcp_client.py", url, mode, key, *options)


async def node_client(url: str, key: str = "k") -> dict[str, Any]:
    sdk = MCP_NODE_KIT.directory / "node_modules/@modelcontextprotocol/sdk"
    return await _said("node", APPS / "mcp_client.mjs", sdk, url, key)


async def _said(*command: str | Path) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=sys.stderr.fileno()
    )
    try:
        async with asyncio.timeout(_WITHIN_S):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out
    said: dict[str, Any] = json.loads(out.splitlines()[-1])
    return said
