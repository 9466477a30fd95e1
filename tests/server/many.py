"""A gateway of several worker processes, as a user starts it, in front of a scripted replica."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, Self

from tests.server.bench import PATIENCE_S, Backend, Client, Message, get, post


class Many:
    """`async with`: started when its workers serve; at the end it must leave with status 0."""

    def __init__(self, directory: Path, *, workers: int = 2, settings: str = "", lame_duck_s: float = 0.3):
        self.backend = Backend()
        self.path = directory / "turnpike.toml"
        self.workers = workers
        self.settings = settings
        self.lame_duck_s = lame_duck_s
        self.log = ""
        self.status = 0
        self.process: asyncio.subprocess.Process
        self.port = self.control_port = 0
        self._clients: list[Client] = []
        self._reading: asyncio.Task[None]

    def write_settings(self, server: str = "") -> None:
        self.path.write_text(
            f'[server]\nlisten = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\nworkers = {self.workers}\n'
            f"lame_duck_s = {self.lame_duck_s}\n{server}\n"
            f'[[pools]]\nreplicas = [{{ url = "{self.backend.url}" }}]\n{self.settings}'
        )

    async def __aenter__(self) -> Self:
        await self.backend.open()
        self.write_settings()
        self.process = await serve(str(self.path), TMPDIR=str(self.path.parent))
        self._reading = asyncio.get_running_loop().create_task(self._read_log())
        try:
            await self.logged("listening on ")
        except BaseException:
            await self._end()
            raise
        where = self.log.partition("listening on ")[2].partition("\n")[0]
        self.port = int(where.partition(",")[0].rpartition(":")[2])
        self.control_port = int(where.rpartition(" ")[2])
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        status = await self._end()
        assert status == self.status, self.log
        assert not list(self.path.parent.glob("turnpike-*"))

    async def _end(self) -> int:
        try:
            async with asyncio.timeout(PATIENCE_S):
                status = await self.process.wait()
        except TimeoutError:
            self.process.kill()
            status = await self.process.wait()
        await self._reading
        for client in self._clients:
            client.close()
        await self.backend.close()
        return status

    async def _read_log(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log += line.decode()

    async def logged(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            while self.log.count(text) < times:
                assert self.process.returncode is None, self.log
                await asyncio.sleep(0.01)

    @property
    def pids(self) -> set[int]:
        return children(self.process.pid)

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        return client

    async def ask(self, request: bytes | None = None) -> Message:
        """On a connection of its own."""
        client = await self.connect()
        try:
            return await client.ask(post() if request is None else request)
        finally:
            client.close()

    async def control(self, request: bytes) -> Message:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.control_port))
        try:
            return await client.ask(request.replace(b"Host: gw", b"Host: localhost"))
        finally:
            client.close()

    async def control_json(self, path: bytes) -> Any:
        answer = await self.control(get(path))
        assert answer.status == 200, answer.body
        return answer.json()

    async def metrics(self) -> dict[str, float]:
        """By name with labels."""
        text = (await self.control(get(b"/metrics"))).body.decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    async def until_all_are_ready(self) -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            while (await self.control_json(b"/turnpike/readyz"))["failing"]:
                await asyncio.sleep(0.05)


async def serve(*arguments: str, **more: str) -> asyncio.subprocess.Process:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TURNPIKE_")
    } | more
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "serve", *arguments, stderr=asyncio.subprocess.PIPE, env=environment
    )


def children(pid: int) -> set[int]:
    with contextlib.suppress(FileNotFoundError):
        return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return set()
