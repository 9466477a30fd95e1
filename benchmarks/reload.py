"""Reloads of one process under load: does a request fail, is anything left behind, how long does one take?

    python -m benchmarks.reload [--quick] [--json]

Clients that keep their connection, and clients that open one for each request, ask without a pause.
Meanwhile the settings change 1,000 times (`--quick`: 100): a replica comes or goes, a replica moves to
another address under its name, a tenant's second key and quota come or go, a limit changes; every tenth file
is wrong. Descriptors, listening sockets and memory of the process are compared after a first tenth of the
reloads and at the end.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.command import judged
from benchmarks.processes import BenchmarkError, free_port, guarded, resident_mib
from benchmarks.verdict import Verdict, percentile
from gateway.server.tenants import hash_key

_RELOADS: Final = 1_000
_QUICK: Final = 100
_KEY, _OTHER_KEY = "tp-one", "tp-two"
_CHAT: Final = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
_MOST_MIB: Final = 30.0
"""More than the process had after the first tenth. Learning and its books grow to a bound; a leak of one
watcher or connection for each reload would be more."""
_SETTLES_S: Final = 6.0
"""Kept connections to replicas that left are closed after `upstream.idle_connection_s`."""


def _settings(ports: tuple[int, int], engines: list[int], number: int) -> str:
    """The file for this reload; not valid if 10 divides the number."""
    first, second, third = engines
    replicas = [("a", first), ("b", third if number % 4 == 3 else second)]
    if number % 2:
        replicas.append((f"c-{number}", third if number % 4 == 1 else second))
    named = ", ".join(f'{{ name = "{name}", url = "http://127.0.0.1:{port}" }}' for name, port in replicas)
    keys = [_KEY, _OTHER_KEY][: 1 + number % 3 // 2]
    wrong = "recipts = true\n" if number and not number % 10 else ""
    return (
        f'[server]\nlisten = "127.0.0.1:{ports[0]}"\ncontrol = "127.0.0.1:{ports[1]}"\n'
        f"drain_s = {number}\n{wrong}"
        f"[server.limits]\nmax_body_bytes = {1_000_000 + number}\n"
        f'[[pools]]\nname = "pool"\nreplicas = [{named}]\n'
        f'[[tenants]]\nname = "team"\nkey_hashes = {[hash_key(key) for key in keys]}\n'
        f"quota = {{ weight = {1.0 + number % 5} }}\n"
    )


@contextlib.contextmanager
def _engines(count: int) -> Iterator[list[int]]:
    command = [sys.executable, "-m", "benchmarks.fast_upstream", "--engines", str(count), "--events", "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=guarded()) as process:
        try:
            assert process.stdout is not None
            yield [int(port) for port in process.stdout.readline().split()]
        finally:
            process.terminate()


@contextlib.contextmanager
def _gateway(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "gateway", "serve", str(path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=guarded()) as process:
        try:
            yield process
        finally:
            process.terminate()


class _Load:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/v1/chat/completions"
        self.statuses: Counter[str] = Counter()
        self.is_over = False

    async def run(self, *, keeps: bool) -> None:
        connector = aiohttp.TCPConnector(force_close=not keeps)
        async with aiohttp.ClientSession(connector=connector) as session:
            while not self.is_over:
                self.statuses[await self._ask(session)] += 1

    async def _ask(self, session: aiohttp.ClientSession) -> str:
        headers = {"Authorization": f"Bearer {_KEY}"}
        try:
            async with session.post(self._url, json=_CHAT, headers=headers) as answer:
                await answer.read()
                return str(answer.status)
        except (aiohttp.ClientError, OSError) as error:
            return type(error).__name__


def _open(pid: int) -> tuple[int, int]:
    """Descriptors, and those of them that are listening sockets."""
    links = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(each))
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                listening.add(f"socket:[{fields[9]}]")
    return len(links), len(listening & set(links))


async def _until_ready(control: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(600):
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{control}/turnpike/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)
    raise BenchmarkError("the gateway did not become ready")


async def _reload_again_and_again(
    path: Path, control: str, write: Callable[[int], str], pid: int, reloads: int
) -> tuple[list[float], Counter[int], tuple[tuple[int, int], float], tuple[tuple[int, int], float]]:
    took_ms, outcomes, early = [], Counter[int](), ((0, 0), 0.0)
    async with aiohttp.ClientSession() as session:

        async def reload(number: int) -> None:
            path.write_text(write(number))  # noqa: ASYNC240 - nobody else is served here
            began = time.perf_counter()
            async with session.post(f"{control}/turnpike/settings/reload") as answer:
                await answer.read()
                outcomes[answer.status] += 1
            took_ms.append((time.perf_counter() - began) * 1e3)

        async def settled() -> tuple[tuple[int, int], float]:
            await reload(4)
            await asyncio.sleep(_SETTLES_S)
            return _open(pid), resident_mib(pid)

        for number in range(1, reloads + 1):
            await reload(number)
            if number == reloads // 10:
                early = await settled()
        return took_ms, outcomes, early, await settled()


def measure(quick: bool, verdict: Verdict, tell: Callable[..., Any]) -> None:
    reloads, ports = _QUICK if quick else _RELOADS, (free_port(), free_port())
    with tempfile.TemporaryDirectory() as directory, _engines(3) as engines:
        path, control = Path(directory) / "turnpike.toml", f"http://127.0.0.1:{ports[1]}"

        def write(number: int) -> str:
            return _settings(ports, engines, number)

        path.write_text(write(0))
        with _gateway(path) as process:

            async def run() -> Any:
                await _until_ready(control)
                load = _Load(ports[0])
                asking = [asyncio.ensure_future(load.run(keeps=keeps)) for keeps in (True, True, False)]
                try:
                    return load, await _reload_again_and_again(path, control, write, process.pid, reloads)
                finally:
                    load.is_over = True
                    await asyncio.gather(*asking)

            load, (took_ms, outcomes, (early, early_mib), (late, late_mib)) = asyncio.run(run())
    tell(f"answers {dict(load.statuses)}; reloads {dict(outcomes)}")
    wrong = reloads // 10
    verdict.tell("requests", load.statuses.total())
    verdict.at_most("requests_failed", load.statuses.total() - load.statuses["200"], 0)
    verdict.at_least("reloads_taken_up", outcomes[200], reloads - wrong)
    verdict.at_least("wrong_files_refused", outcomes[409], wrong)
    verdict.at_most("descriptors_more", late[0] - early[0], 2)
    verdict.at_most("listeners_more", late[1] - early[1], 0)
    verdict.at_most("memory_more_mib", late_mib - early_mib, _MOST_MIB)
    verdict.tell("reload_ms_median", percentile(took_ms, 50))
    verdict.tell("reload_ms_p99", percentile(took_ms, 99))


def main(argv: list[str] | None = None) -> int:
    return judged(__file__, __doc__, measure, quick=f"{_QUICK} reloads", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
