"""Does anything that one client sends hurt another?

    python -m benchmarks.bystander [--quick] [--json]

One client, the bystander, asks small questions all the time, of an engine of its own. Meanwhile another one
sends the worst bodies of 256 KiB and 8 MiB that we know (`bodies.py`), to an engine that says them
back. The gateway has a core to itself, and what the attack needs runs only when the bystander does not. Then
by how much the gateway's memory grows under clients that never read, pipelined requests, huge names and a
parent of many children.
"""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.bystander.bodies import Attack, named, shaped, spoken
from benchmarks.command import judged
from benchmarks.gateway import running
from benchmarks.processes import (
    ROOT,
    BenchmarkError,
    Pinning,
    Strangers,
    guarded,
    resident_mib,
    serving,
    stolen_ms,
    upstream,
    waited_ms,
)
from benchmarks.verdict import Verdict, percentile

SIZES: Final = {"256_KiB": 2**18, "8_MiB": 2**23}
LATEST_MS: Final = 100
GROWTH_MIB: Final = 32
CHILDREN_GROWTH_MIB: Final = 64
_QUICK: Final = """
[[pools]]
name = "quick"
models = ["quick"]
replicas = [{ url = "http://127.0.0.1:%d" }]
"""
"""The bystander's engine."""
_LEAST_URGENT: Final = 19
_SMALL: Final = b'{"model":"quick","messages":[{"role":"user","content":"%d"}]}'
_PAUSE_S: Final = 0.005
_ANSWER_WITHIN_S: Final = 30.0
_SETTLE_S: Final = 2.0
_AT_ONCE: Final = 16
"""Connections that send children's requests."""


def _post(body: bytes, fields: str = "") -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n{fields}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)


async def _pass_answer(reader: asyncio.StreamReader) -> None:
    """Reads an answer to its end and forgets it."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, found, length = head.partition(b"\r\ncontent-length:")
    left = int(length.partition(b"\r\n")[0]) if found else 0
    while left:
        left -= len(await reader.read(min(left, 1 << 18)))
        if reader.at_eof():
            return
    while not found:
        size = int(await reader.readuntil(b"\r\n"), 16)
        await reader.readexactly(size + 2)
        if not size:
            return


async def attack(port: int, attacks: Iterator[Attack], *, tell: Callable[[str], None]) -> None:
    """Sends one after the other, and tells when. One that the gateway will not hear costs a connection."""
    for each in attacks:
        reader, writer = await _connect(port)
        tell(f"{time.monotonic():.4f} {each.name}")
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError, TimeoutError):
            writer.write(each.wire)
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                await _pass_answer(reader)
        writer.close()


async def watch(port: int, gateway: int, is_over: Callable[[], bool]) -> list[tuple[float, float]]:
    """When each small request was sent, and the milliseconds that it took, without those that a hypervisor
    took from this machine meanwhile or that the gateway's process had no core, until that is over."""
    reader, writer = await _connect(port)
    late: list[tuple[float, float]] = []
    while not is_over():
        began, lost = time.monotonic(), stolen_ms() + waited_ms(gateway)
        writer.write(_post(_SMALL % len(late)))
        await _pass_answer(reader)
        took_ms = 1e3 * (time.monotonic() - began) - (stolen_ms() + waited_ms(gateway) - lost)
        late.append((began, max(0.0, took_ms)))
        await asyncio.sleep(_PAUSE_S)
    writer.close()
    return late


async def never_read(port: int, _: int) -> None:
    """Eight clients ask for endless streams."""
    writers = [(await _connect(port))[1] for _ in range(8)]
    for writer in writers:
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # streams have a read transport
        writer.write(_post(b'{"model":"m","stream":true,"flood":1,"messages":[]}'))
    await asyncio.sleep(5)


async def pipeline(port: int, count: int) -> None:
    """One client sends all its requests at once and reads no answer."""
    _, writer = await _connect(port)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # streams have a read transport
    writer.write(_post(_SMALL % 1) * count)
    await asyncio.sleep(5)


async def send_names(port: int, count: int) -> None:
    await attack(port, (named(10**6, number) for number in range(count)), tell=lambda _: None)


async def send_children(port: int, count: int) -> None:
    """All of one parent."""
    reader, writer = await _connect(port)
    writer.write(_post(_SMALL % 0, "x-turnpike-session: the-parent\r\n"))
    await _pass_answer(reader)
    writer.close()

    async def send(first: int) -> None:
        reader, writer = await _connect(port)
        for number in range(first, count, _AT_ONCE):
            fields = (
                f"x-turnpike-session: child-{number:08d}-of-a-parent\r\nx-turnpike-parent: the-parent\r\n"
            )
            writer.write(_post(_SMALL % number, fields))
            await _pass_answer(reader)
        writer.close()

    await asyncio.gather(*map(send, range(_AT_ONCE)))


@contextmanager
def _gateway(engine: str, quick: int, pinning: Pinning, folder: Path) -> Iterator[tuple[int, int]]:
    """Its port and its process, after a few requests."""
    with running([engine], folder, _QUICK % quick, cores=pinning.gateway) as gateway:
        until = time.monotonic() + 1
        asyncio.run(watch(gateway.port, gateway.pid, lambda: time.monotonic() > until))
        yield gateway.port, gateway.pid


def _late_beside(port: int, gateway: int, size_name: str, count: int, log: Path, tell: Any) -> list[float]:
    """Milliseconds that the bystander waited while all bodies of that size were sent."""
    attack = ["-m", "benchmarks.bystander", "--attack", *map(str, (port, SIZES[size_name], count))]
    command = ["nice", "-n", str(_LEAST_URGENT), sys.executable, *attack]
    with log.open("w") as told:
        attacker = subprocess.Popen(command, cwd=ROOT, stdout=told, env=guarded())
    try:
        late = asyncio.run(watch(port, gateway, lambda: attacker.poll() is not None))
        if attacker.returncode:
            raise BenchmarkError("the attacker failed")
    finally:
        attacker.kill()
        attacker.wait()
    lines = (line.partition(" ") for line in log.read_text().splitlines())
    sent = [(float(at), name) for at, _, name in lines]
    tell(f"{size_name}: {len(sent)} bodies; the bystander asked {len(late)} times")
    for at, ms in sorted(late, key=lambda each: -each[1])[:5]:
        _, beside = max((each for each in sent if each[0] <= at + ms / 1e3), default=(0.0, "nothing"))
        tell(f"    {ms:.0f} ms beside {beside}")
    return [ms for _, ms in late]


def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    pinning = Pinning.of_this_machine()
    with (
        tempfile.TemporaryDirectory(prefix="bystander-") as name,
        serving("benchmarks.bystander.engine", cores=pinning.others, niceness=_LEAST_URGENT) as echo,
        upstream(pinning) as (quick,),
    ):
        folder, engine = Path(name), f"http://127.0.0.1:{echo}"
        os.sched_setaffinity(0, pinning.others)
        strangers = Strangers()
        with _gateway(engine, quick, pinning, folder / "late") as (port, pid):
            for size_name, count in (("256_KiB", 40 if is_quick else 400), ("8_MiB", 3 if is_quick else 60)):
                late = _late_beside(port, pid, size_name, count, folder / size_name, tell)
                verdict.tell(f"p99_ms_beside_{size_name}", percentile(late, 99))
                verdict.at_most(f"worst_ms_beside_{size_name}", max(late), LATEST_MS)
        verdict.tell("strangers_share", strangers.share)
        play: list[tuple[str, Callable[[int, int], Coroutine[Any, Any, None]], int, int]] = [
            ("never_reading", never_read, 8, GROWTH_MIB),
            ("pipelined", pipeline, 20_000, GROWTH_MIB),
            ("names", send_names, 200, GROWTH_MIB),
            ("children", send_children, 6_000 if is_quick else 60_000, CHILDREN_GROWTH_MIB),
        ]
        for title, run, count, bound in play:
            with _gateway(engine, quick, pinning, folder / title) as (port, pid):
                before = resident_mib(pid)
                asyncio.run(run(port, count))
                if run in (send_names, send_children):
                    time.sleep(_SETTLE_S)
                verdict.at_most(f"mib_of_{count}_{title}", resident_mib(pid) - before, bound)


def _attack_main(port: int, size: int, count: int) -> None:
    tell = partial(print, flush=True)
    asyncio.run(attack(port, shaped(size), tell=tell))
    asyncio.run(attack(port, spoken(size, random.Random(size), count), tell=tell))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attack"]:
        _attack_main(*map(int, sys.argv[2:5]))
        sys.exit(0)
    sys.exit(judged(__file__, __doc__, measure, quick="fewer bodies, and 6,000 children instead of 60,000"))
