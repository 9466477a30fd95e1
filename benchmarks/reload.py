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
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.command import judged
from benchmarks.gateway import Running, running
from benchmarks.processes import Pinning, resident_mib, upstream
from benchmarks.verdict import Verdict, percentile
from gateway.server.auth.client_keys import hash_key

_KEY, _OTHER_KEY = "tp-one", "tp-two"
_CHAT: Final = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
_MOST_MIB: Final = 30.0
"""More than the process had after the first tenth. Learning and its books grow to a bound; a leak of one
watcher or connection for each reload would be more."""
_SETTLES_S: Final = 6.0
"""Kept connections to replicas that left are closed after `upstream.idle_connection_s`."""


def settings(engines: list[int], number: int) -> dict[str, Any]:
    """The file for this reload, in parts; not valid if 10 divides the number."""
    first, second, third = engines
    replicas = [("a", first), ("b", third if number % 4 == 3 else second)]
    if number % 2:
        replicas.append((f"c-{number}", third if number % 4 == 1 else second))
    named = ", ".join(f'{{ name = "{name}", url = "http://127.0.0.1:{port}" }}' for name, port in replicas)
    keys = [hash_key(key) for key in (_KEY, _OTHER_KEY)[: 1 + number % 3 // 2]]
    wrong = "recipts = true\n" if number and not number % 10 else ""
    return {
        "server": f"drain_s = {number}\n{wrong}[server.limits]\nmax_body_bytes = {1_000_000 + number}\n",
        "pool": f'[[pools]]\nname = "pool"\nreplicas = [{named}]\n',
        "settings": f'[[tenants]]\nname = "team"\nkey_hashes = {keys}\n'
        f"quota = {{ weight = {1.0 + number % 5} }}\n",
    }


async def load(url: str, statuses: Counter[str], is_over: asyncio.Event, *, keeps: bool) -> None:
    headers = {"Authorization": f"Bearer {_KEY}"}
    connector = aiohttp.TCPConnector(force_close=not keeps)
    async with aiohttp.ClientSession(connector=connector) as session:
        while not is_over.is_set():
            try:
                async with session.post(f"{url}/v1/chat/completions", json=_CHAT, headers=headers) as answer:
                    await answer.read()
                    statuses[str(answer.status)] += 1
            except (aiohttp.ClientError, OSError) as error:
                statuses[type(error).__name__] += 1


class Held(msgspec.Struct, frozen=True):
    """By the process."""

    descriptors: int
    listeners: int
    mib: float

    @classmethod
    def by(cls, pid: int) -> "Held":
        links, listening = [], set()
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                links.append(os.readlink(each))
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    listening.add(f"socket:[{fields[9]}]")
        return cls(len(links), len(listening & set(links)), resident_mib(pid))


async def reloads(
    path: Path, gateway: Running, engines: list[int], count: int
) -> tuple[list[float], Counter[int], Held, Held]:
    """What each took in ms, how they were answered, and what is held after a tenth and in the end."""
    took_ms, outcomes = list[float](), Counter[int]()
    head = '[server]\nlisten = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\n'
    async with aiohttp.ClientSession() as session:

        async def reload(number: int) -> None:
            path.write_text(head + "".join(settings(engines, number).values()))  # noqa: ASYNC240
            began = time.perf_counter()
            async with session.post(f"{gateway.control}/turnpike/settings/reload") as answer:
                await answer.read()
                outcomes[answer.status] += 1
            took_ms.append((time.perf_counter() - began) * 1e3)

        async def settled() -> Held:
            await reload(4)
            await asyncio.sleep(_SETTLES_S)
            return Held.by(gateway.pid)

        for number in range(1, count // 10 + 1):
            await reload(number)
        early = await settled()
        for number in range(count // 10 + 1, count + 1):
            await reload(number)
        return took_ms, outcomes, early, await settled()


async def run(path: Path, gateway: Running, engines: list[int], count: int) -> tuple[Counter[str], Any]:
    statuses, is_over = Counter[str](), asyncio.Event()
    clients = [
        asyncio.ensure_future(load(gateway.url, statuses, is_over, keeps=keeps))
        for keeps in (True, True, False)
    ]
    try:
        return statuses, await reloads(path, gateway, engines, count)
    finally:
        is_over.set()
        await asyncio.gather(*clients)


def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    count = 100 if is_quick else 1_000
    with (
        tempfile.TemporaryDirectory(prefix="reload-") as name,
        upstream(Pinning.of_this_machine(), engines=3, events=4) as engines,
    ):
        folder = Path(name) / "gateway"
        with running([], folder, **settings(engines, 0)) as gateway:
            found = asyncio.run(run(folder / "turnpike.toml", gateway, engines, count))
    statuses, (took_ms, outcomes, early, late) = found
    tell(f"answers {dict(statuses)}; reloads {dict(outcomes)}")
    verdict.tell("requests", statuses.total())
    verdict.at_most("requests_failed", statuses.total() - statuses["200"], 0)
    verdict.at_least("reloads_taken_up", outcomes[200], count - count // 10)
    verdict.at_least("wrong_files_refused", outcomes[409], count // 10)
    verdict.at_most("descriptors_more", late.descriptors - early.descriptors, 2)
    verdict.at_most("listeners_more", late.listeners - early.listeners, 0)
    verdict.at_most("memory_more_mib", late.mib - early.mib, _MOST_MIB)
    verdict.tell("reload_ms_median", percentile(took_ms, 50))
    verdict.tell("reload_ms_p99", percentile(took_ms, 99))


if __name__ == "__main__":
    sys.exit(judged(__file__, __doc__, measure, quick="100 reloads"))
