"""`turnpike control`: real gateway processes, told of by one control plane."""

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from scripted_engine.ports import free_port
from tests.server.bench import Client, Message, get
from tests.several.fleet import READY_WITHIN_S, Fleet, running_fleet

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

AGENTS = 24
"""Which gateway has a session is by chance: that one of two has none is one run in 2**23."""


async def asked(port: int, path: bytes) -> Message:
    client = Client(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 22))
    try:
        return await client.ask(get(path))
    finally:
        client.close()


async def told(port: int, path: bytes) -> Any:
    return (await asked(port, path)).json()


def ports_of(fleet: Fleet) -> list[int]:
    return [each.control_port for each in fleet.gateways]


@contextlib.asynccontextmanager
async def control_of(ports: Iterable[int], directory: Path) -> AsyncIterator[int]:
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    log = directory / "control.log"
    with log.open("wb") as written:
        command = [sys.executable, "-m", "gateway", "control", *urls, "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(command, stderr=written)
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            while "/turnpike/\n" not in log.read_text():
                await asyncio.sleep(0.05)
        yield int(log.read_text().rpartition("/turnpike/")[0].rpartition(":")[2])
        process.terminate()
        assert await asyncio.to_thread(process.wait, 10) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


async def is_listening(port: int) -> bool:
    with contextlib.suppress(ConnectionError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


@contextlib.asynccontextmanager
async def history_of(fleet: Fleet, file: Path, url: str) -> AsyncIterator[None]:
    follows = [f"--gateway=http://127.0.0.1:{each.control_port}" for each in fleet.gateways]
    where = ["--path", str(file), "--listen", url.removeprefix("http://")]
    process = subprocess.Popen([sys.executable, "-m", "gateway", "history", *follows, *where])
    port = int(url.rpartition(":")[2])
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            while not await is_listening(port):
                await asyncio.sleep(0.1)
        yield
    finally:
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == 0


async def test_sessions_of_all_gateways_are_told_of_as_one(tmp_path):
    async with running_fleet(tmp_path, gateways=2) as fleet, control_of(ports_of(fleet), tmp_path) as port:
        for number in range(AGENTS):
            fleet.agent(f"agent-{number}", headers=b"x-turnpike-session: stated-%d\r\n" % number)
        await asyncio.gather(*(agent.run(turns=2) for agent in fleet.agents))

        known = {agent.sessions[0] for agent in fleet.agents}
        apart = [
            {each["id"] for each in (await told(gateway.control_port, b"/turnpike/snapshot"))["sessions"]}
            for gateway in fleet.gateways
        ]
        assert all(apart), "each gateway has some"
        snapshot = await told(port, b"/turnpike/snapshot")
        assert {each["id"] for each in snapshot["sessions"]} == known == set().union(*apart)
        assert await told(port, b"/turnpike/readyz") == {"ready": True, "failing": []}
        assert (await asked(port, b"/metrics")).status == 404
        unknown = await asked(port, b"/turnpike/snapshots")
        assert unknown.status == 404 and "/turnpike/snapshot?" in unknown.json()["error"]
        assert b"<html" in (await asked(port, b"/turnpike/")).body

        finish = b"POST /turnpike/sessions/%s/finish HTTP/1.1\r\nHost: gw\r\nContent-Length: 0\r\n\r\n"
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        for session in known:
            assert (await client.ask(finish % session.encode())).status == 200
        client.close()


async def test_a_gateway_that_is_gone_is_named_and_left_out(tmp_path):
    async with running_fleet(tmp_path, gateways=2) as fleet, control_of(ports_of(fleet), tmp_path) as port:
        fleet.gateways[1].kill()
        assert await told(port, b"/turnpike/readyz") == {
            "ready": True,
            "failing": ["gateways (1 of 2 missing)"],
        }
        assert (await asked(port, b"/turnpike/snapshot")).status == 200
        fleet.gateways[0].kill()
        assert (await asked(port, b"/turnpike/readyz")).status == 503
        assert json.loads((await asked(port, b"/turnpike/snapshot")).body) == {"error": "no gateway answers"}


def test_what_is_no_url_is_refused():
    command = [sys.executable, "-m", "gateway", "control", "gateway-a:8081"]
    ended = subprocess.run(command, capture_output=True, timeout=30)
    assert ended.returncode == 1 and b"a control plane is a URL" in ended.stderr


async def test_what_is_over_is_told_of_all_gateways(tmp_path):
    """One history follows both; a session's page and the figures are of all of them."""
    url, file = f"http://127.0.0.1:{free_port()}", tmp_path / "history.sqlite"
    preludes = [f"import os; os.environ['TURNPIKE_HISTORY__URL'] = {url!r}"] * 2
    async with (
        running_fleet(tmp_path, gateways=2, preludes=preludes) as fleet,
        control_of(ports_of(fleet), tmp_path) as port,
        history_of(fleet, file, url),
    ):
        for number in range(AGENTS):
            fleet.agent(f"agent-{number}", headers=b"x-turnpike-session: stated-%d\r\n" % number)
        await asyncio.gather(*(agent.run(turns=2) for agent in fleet.agents))
        known = {agent.sessions[0] for agent in fleet.agents}
        async with asyncio.timeout(60):
            while (past := await told(port, b"/turnpike/history")).get("turns", 0) < 2 * AGENTS:
                await asyncio.sleep(0.3)
        assert past["outcomes"] == {"finished": 2 * AGENTS} and past["percentiles"]["run_ms"]["p99"] > 0
        assert {row["session"] for row in past["sessions"]} == known
        with contextlib.closing(sqlite3.connect(file)) as db:
            apart = db.execute("SELECT count(*) FROM turns GROUP BY gateway").fetchall()
        assert len(apart) == 2, "each has some"
        for session in known:
            page = await told(port, b"/turnpike/sessions/%s" % session.encode())
            assert len(page["turns"]) == 2 and page["session"]["turns"] == 2
            turn = page["turns"][0]["turn"].encode()
            assert (await told(port, b"/turnpike/turns/%s" % turn))["became"]["outcome"] == "finished"
