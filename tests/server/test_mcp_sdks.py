"""The official SDKs, unmodified, see the same through the gateway as without it, and so do their servers."""

from pathlib import Path
from typing import Any

import pytest

from gateway.server.auth.client_keys import hash_key
from tests.clients.programs import MCP_NODE_KIT
from tests.server.bench import Bench, eventually
from tests.server.mcp_bench import passing
from tests.server.mcp_programs import installed, node_client, python_client, sdk_server

pytestmark = [pytest.mark.agents, pytest.mark.timeout(300)]

KEY = "tp-alice-secret"
TENANTS = [{"name": "alice", "key_hashes": [hash_key(KEY)]}]


def url_of(bench: Bench) -> str:
    return f"http://127.0.0.1:{bench.gateway.listener.port}/mcp/tools"


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        pytest.param("legacy", (), id="sessions-events"),
        pytest.param("legacy", ("--json",), id="sessions-json", marks=pytest.mark.nightly),
        pytest.param("auto", (), id="newest-events", marks=pytest.mark.nightly),
        pytest.param("auto", ("--json",), id="newest-json", marks=pytest.mark.nightly),
    ],
)
async def test_the_python_sdk_sees_what_it_sees_without(
    start: Any, tmp_path: Path, mode: str, options: tuple[str, ...]
) -> None:
    more = ("--whole",) if options else ()
    async with sdk_server(tmp_path, *options) as server:
        bench = await start(tenants=TENANTS, mcp=[{"name": "tools", "url": server.url}])
        directly = await python_client(server.url, mode, KEY, *more)
        before, cancelled = len(server.notes()), server.calls("waits", "cancelled")
        through = await python_client(url_of(bench), mode, KEY, *more)
        assert through == directly and through["ok"]
        assert len(server.notes()) == 2 * before
        assert server.calls("waits", "cancelled") == cancelled + cancelled
        assert cancelled or (mode, options) == ("auto", ("--json",))  # there it hears of no cancellation
        await eventually(lambda: not passing(bench))


@pytest.mark.nightly
async def test_the_typescript_sdk_sees_what_it_sees_without(start: Any, tmp_path: Path) -> None:
    await installed(MCP_NODE_KIT, tmp_path)
    async with sdk_server(tmp_path) as server:
        bench = await start(tenants=TENANTS, mcp=[{"name": "tools", "url": server.url}])
        directly = await node_client(server.url, KEY)
        assert await node_client(url_of(bench), KEY) == directly
        assert (directly["resumed"], directly["waits"]) == ("still here", "aborted")
        assert sum(server.calls("waits", "cancelled").values()) == 2
        await eventually(lambda: not passing(bench))
