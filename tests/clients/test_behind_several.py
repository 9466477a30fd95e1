"""Real agents before two gateways that share a real Redis, with a plain TCP balancer between them."""

import asyncio
import itertools
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from demo.agents import CLAUDE_CODE, CODEX, MINI_SWE_AGENT
from demo.install import KIT, install_agents
from demo.processes import Children
from demo.runs import Place, Plan, run_agents
from tests.clients.programs import all_scripts
from tests.engines import MODEL, Fleet
from tests.gateways import running_gateway
from tests.prerequisites import require_command
from tests.shared_state.servers import RedisServer

pytestmark = [pytest.mark.nightly, pytest.mark.engine, pytest.mark.agents, pytest.mark.timeout(700)]

AGENTS = (MINI_SWE_AGENT, CLAUDE_CODE, CODEX)


class Balancer:
    """Connections to one server after the other, on a thread of its own; a context manager."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = itertools.cycle(ports)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._is_serving = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._over: asyncio.Event
        self.port = 0
        self.connections = 0

    def __enter__(self) -> "Balancer":
        self._thread.start()
        assert self._is_serving.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._is_serving.set()
            await self._over.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, to = await asyncio.open_connection("127.0.0.1", next(self._ports))
        await asyncio.gather(_pump(reader, to), _pump(there, writer), return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@pytest.fixture
def behind(fleet: Fleet, tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """The URL before two gateways, and those of their control planes."""
    with ExitStack() as stack:
        (tmp_path / "redis").mkdir()
        redis = RedisServer(tmp_path / "redis", kind="plain").start()
        stack.callback(redis.kill)
        ports, controls = [], []
        for name in ("a", "b"):
            settings = f'[shared]\nurl = "{redis.url}"\n'
            backends = [engine.url for engine in fleet.scripted]
            directory = tmp_path / f"gateway-{name}"
            ports.append(stack.enter_context(running_gateway(backends, directory, more_settings=settings)))
            told = (directory / "log").read_text().partition("control on port ")[2]
            controls.append(f"http://127.0.0.1:{told.split()[0]}")
        balancer = stack.enter_context(Balancer(ports))
        yield f"http://127.0.0.1:{balancer.port}", controls
        assert balancer.connections >= 2


@pytest.mark.parametrize("agent", AGENTS, ids=[agent.name for agent in AGENTS])
async def test_each_run_is_one_session_at_one_gateway(agent, behind, fleet, tmp_path):
    require_command("npm", install="Node.js 20 or newer brings it")
    fleet.play(all_scripts())
    url, controls = behind
    children = Children(f"test-{tmp_path}")
    try:
        place = Place(gateway_url=url, model=MODEL, directory=tmp_path, children=children)
        await install_agents(children, tmp_path, print, KIT)
        plans = [Plan(name=f"{agent.name}-{n}", agent=agent, strip=True) for n in range(2)]
        runs = await run_agents(place, plans, print)
    finally:
        children.stop_all()
    sessions = [[session for session in run.sessions if session is not None] for run in runs]
    assert [run.is_done for run in runs] == [True, True], runs[0].log.read_text()[-3000:]
    known: dict[str, tuple[int, str | None]] = {}
    for at, control in enumerate(controls):
        with urllib.request.urlopen(f"{control}/turnpike/snapshot", timeout=5) as answer:
            known |= {session["id"]: (at, session["guess"]) for session in json.load(answer)["sessions"]}
    for of_run in sessions:
        assert len({known[session][0] for session in of_run}) == 1
        assert len({first_of(session, known) for session in of_run}) == 1


def first_of(session: str, known: dict[str, tuple[int, str | None]]) -> str:
    """If every guess is right."""
    while (guess := known[session][1]) is not None:
        session = guess
    return session
