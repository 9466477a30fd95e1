"""Real gateways and histories, each a process of its own, and a client's turns."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from scripted_engine.ports import free_port
from tests.server.bench import CHAT, Backend, Client, Message, get, post


class Process:
    """`turnpike …`, which can be started again."""

    def __init__(self, log: Path, *arguments: str, port: int) -> None:
        self.log, self.port, self._arguments = log, port, arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "gateway", *self._arguments], stderr=log)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.send(number)
        assert self._process is not None
        status = await asyncio.to_thread(self._process.wait, 20)
        assert status == (0 if number is signal.SIGTERM else -number), self.log.read_text()
        assert "Traceback" not in self.log.read_text(), self.log.read_text()
        self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def ask(self, path: str, headers: bytes = b"") -> Message:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24))
        try:
            return await client.ask(get(path.encode(), headers).replace(b"Host: gw", b"Host: localhost"))
        finally:
            client.close()

    async def ready(self) -> None:
        await comes(self._is_ready, self.log)

    async def _is_ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError, EOFError):
            return (await self.ask("/turnpike/readyz")).status == 200
        return False


async def comes(check: Any, log: Path | None = None) -> None:
    """Raises AssertionError where it does not within half a minute."""
    for _ in range(600):
        if await check():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(log.read_text() if log is not None else "it never came")


class Place:
    """A directory with a backend, gateways before it, and histories."""

    def __init__(self, directory: Path, backend: Backend) -> None:
        self.directory, self.backend = directory, backend
        self.processes: list[Process] = []
        self.ports: dict[Process, int] = {}
        """Where a gateway's clients connect."""

    async def gateway(self, *, history: int | None = None, settings: str = "") -> Process:
        name, port, control = f"gateway-{len(self.processes)}", free_port(), free_port()
        named = f'[history]\nurl = "http://127.0.0.1:{history}"\n' if history is not None else ""
        file = self.directory / f"{name}.toml"
        file.write_text(
            f'[server]\nlisten = "127.0.0.1:{port}"\ncontrol = "127.0.0.1:{control}"\n'
            f"shutdown_delay_s = 0\n"
            f'[[pools]]\nreplicas = [{{ url = "{self.backend.url}" }}]\n{named}{settings}'
        )
        process = Process(self.directory / f"{name}.log", "serve", str(file), port=control)
        self.ports[process] = port
        return await self._started(process)

    async def history(self, *arguments: str, port: int | None = None, name: str = "history") -> Process:
        port, path = port or free_port(), str(self.directory / f"{name}.sqlite")
        about = ("history", "--path", path, "--listen", f"127.0.0.1:{port}", *arguments)
        return await self._started(Process(self.directory / f"{name}.log", *about, port=port))

    async def _started(self, process: Process) -> Process:
        self.processes.append(process)
        process.start()
        await process.ready()
        return process

    async def turns(self, gateway: Process, session: str, count: int) -> list[str]:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.ports[gateway]))
        ids = []
        for _ in range(count):
            answer = await client.ask(post(CHAT, headers=b"X-Turnpike-Session: %s\r\n" % session.encode()))
            assert answer.status == 200
            ids.append((answer.get(b"x-turnpike-request") or b"").decode())
        client.close()
        return ids


@contextlib.asynccontextmanager
async def a_place(directory: Path) -> AsyncIterator[Place]:
    backend = Backend()
    await backend.open()
    place = Place(directory, backend)
    try:
        yield place
        for process in place.processes:
            if process._process is not None:
                await process.end()
    finally:
        for process in place.processes:
            process.kill()
        await backend.close()


def url(process: Process) -> str:
    return f"http://127.0.0.1:{process.port}"


async def look(history: Process, query: str = "") -> dict[str, Any]:
    answer = await history.ask(f"/turnpike/history{query}")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def has_turns(history: Process, count: int, log: Path | None = None) -> None:

    async def are_there() -> bool:
        return (await look(history))["turns"] >= count

    await comes(are_there, log)
    await asyncio.sleep(0.5)
    found = await look(history)
    assert found["turns"] == count and sum(row["turns"] for row in found["sessions"]) == count
