"""What the gateway's own code takes for a turn, without sockets, kernel and event loop.

    python -m benchmarks.turn_in_process [--quick] [--json] [--only SHAPE,…] [--relay] [--against CHECKOUT]

The shapes of `benchmarks.agent_turns`, in one process: what clients and the server would send is given to the
gateway's connections, and what they write is taken from them. Processor time of the thread, of each turn; the
figure is the 20th percentile, which is what a turn takes when nobody else has emptied the caches. So it tells
a change of some per cent on a busy machine, where the whole cannot; it does not say what part of the whole.

Parts: `request`, until it is sent on; `start`, the head and the first four events of the answer; `middle`,
each an event in a read of its own; `end`, the last three events, with all that is learned; `all`; and, where
many sessions share a connection, `opening`, all of a session's first turn, which the others do not count.
With `--against`, another checkout in turns with this one, and the ratio of this one to that, with its
interval, of `request`, `all` and `opening`; with `--relay`, both with `server.mode = "relay"`.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import uvloop

from benchmarks.answers import STREAM_HEAD, StreamParts, call_id, completion_parts, find_call_id
from benchmarks.command import judged
from benchmarks.processes import ROOT, BenchmarkError, Pinning, guarded, upstream
from benchmarks.shapes import SHAPES, Shape, conversations
from benchmarks.verdict import Interval, Verdict
from gateway.config.load import load_config
from gateway.server.app import Gateway
from gateway.server.http.client_connection import ClientConnection
from gateway.server.runtime.memory import set_up_memory
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.replica import Replica

PARTS: Final = ("request", "start", "middle", "end", "all")
OPENING: Final = "opening"
_READ_BYTES: Final = 250_000
"""That a connection is given at once, as uvloop does."""
_WARM_TURNS: Final = 2
_LEAST: Final = 16
"""Turns at a time: of few connections each has several."""
_FIRST, _LAST = 4, 3

Take = Callable[[Callable[[bytes], None], list[bytes]], float]


class Pipe:
    """As much of a transport as connections ask of it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.written += parts

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None


class Turns:
    """One after the other, through a gateway whose connections to its replica are pipes."""

    def __init__(
        self, gateway: Gateway, shape: Shape, take: Take | None = None, *, after: "Turns | None" = None
    ) -> None:
        """`take`: gives a connection what was read, and measures that in place of the clock; `after`: others,
        which came before through the same gateway."""
        self._shape = shape
        self._take = take or _taken_by
        self.replicas: list[tuple[UpstreamConnection, Pipe]] = after.replicas if after is not None else []
        self._stream = None
        if shape.stream is not None:
            self._stream = StreamParts(shape.stream.tokens, shape.dialect.name)
        self._completion = completion_parts()
        self.seed: int = after.seed + 1 if after is not None else 1
        self._number = self.seed << 32
        self.taken: dict[str, list[float]] = {part: [] for part in (*PARTS, OPENING)}
        self._agents = [
            (agent, ClientConnection(gateway.listener), Pipe())
            for agent in conversations(shape, random.Random(self.seed))
        ]
        for _, client, pipe in self._agents:
            client.connection_made(cast(asyncio.Transport, pipe))

    def __len__(self) -> int:
        """Connections."""
        return len(self._agents)

    async def connect(self, *_: object) -> UpstreamConnection:
        connection, pipe = UpstreamConnection(), Pipe()
        connection.connection_made(cast(asyncio.Transport, pipe))
        self.replicas.append((connection, pipe))
        return connection

    async def of_each(self, *, counts: bool, are_first: bool = False) -> None:
        for agent, client, pipe in self._agents:
            pipe.written.clear()
            sent_s = self._take(client.data_received, self._reads(list(map(bytes, agent.request()))))
            while not (found := [each for each in self.replicas if each[1].written]):  # noqa: ASYNC110
                await asyncio.sleep(0)  # a connection is made in a task
            [(replica, sent)] = found
            sent.written.clear()
            parts = [sent_s, *(self._take(replica.data_received, each) for each in self._answer())]
            agent.answered(find_call_id(b"".join(pipe.written)))
            if counts and are_first:
                self.taken[OPENING].append(sum(parts) * 1e6)
            elif counts:
                for name, took_s in zip(PARTS, (*parts, sum(parts)), strict=True):
                    self.taken[name].append(took_s * 1e6)
            await asyncio.sleep(0)

    def _reads(self, request: list[bytes]) -> list[bytes]:
        """As the SDK writes it and uvloop reads it."""
        whole = b"".join(request[1:] if self._shape.dialect.is_apart else request)
        parts = [whole[at : at + _READ_BYTES] for at in range(0, len(whole), _READ_BYTES)]
        return [request[0], *parts] if self._shape.dialect.is_apart else parts

    def _answer(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """What is read first, then, and last."""
        self._number += 1
        if self._stream is None:
            return [], [], [call_id(self._number).join(self._completion)]
        events = [self._stream.chunk(at, self._number) for at in range(len(self._stream.chunks))]
        return [STREAM_HEAD, *events[:_FIRST]], events[_FIRST:-_LAST], events[-_LAST:]


def _taken_by(give: Callable[[bytes], None], reads: list[bytes]) -> float:
    start = time.thread_time()
    for read in reads:
        give(read)
    return time.thread_time() - start


SESSIONS: Final = '[stream]\npath = "{folder}/stream"\n'
_RELAY: Final = 'mode = "relay"\n'


async def started(engine: int, folder: str, mode: str) -> Gateway:
    settings = Path(folder) / "turnpike.toml"
    settings.write_text(
        f'[server]\nlisten = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\n{mode.format(folder=folder)}'
        f'[[pools]]\nreplicas = [{{ url = "http://127.0.0.1:{engine}" }}]\n'
    )
    set_up_memory()
    gateway = Gateway(load_config(str(settings), {}, {}), {})
    await gateway.start()
    return gateway


async def through(gateway: Gateway, turns: Turns) -> None:
    """From now on its replica's connections are pipes, too. Returns when it knows that this is up."""
    Replica._connect = turns.connect  # type: ignore[method-assign, assignment]  # noqa: SLF001
    while not any(state.is_up for state in gateway.driver.coordinator.fleet):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def _measured(shape: Shape, turns: int, engine: int, folder: str, mode: str) -> dict[str, float]:
    """µs of each part."""
    gateway = await started(engine, folder, mode)
    seen = Turns(gateway, shape)
    await through(gateway, seen)
    for turn in range(max(_WARM_TURNS, shape.crowd)):
        await seen.of_each(counts=turn >= _WARM_TURNS, are_first=True)
    for _ in range(turns * max(1, _LEAST // len(seen))):
        await seen.of_each(counts=True)
    return {name: statistics.quantiles(each, n=10)[1] for name, each in seen.taken.items() if each}


def work(name: str, turns: int, *, is_relay: bool) -> None:
    """In a process of its own: prints what it measured."""
    [shape] = [each for each in SHAPES if each.name == name]
    with upstream(Pinning.of_this_machine(), events=4) as [engine], tempfile.TemporaryDirectory() as folder:
        found = uvloop.run(_measured(shape, turns, engine, folder, _RELAY if is_relay else SESSIONS))
    print(json.dumps(found), flush=True)
    os._exit(0)  # connections that are none cannot be drained


def _asked(tree: Path, shape: Shape, turns: int, *, is_relay: bool) -> dict[str, float]:
    return in_checkout(
        tree, f"turn_in_process import work; work({shape.name!r}, {turns}, is_relay={is_relay})"
    )


def in_checkout(tree: Path, work: str) -> dict[str, float]:
    """What this prints (`MODULE import NAME; call`), with this checkout's gateway under these benchmarks."""
    code = (
        "import sys, types; benchmarks = types.ModuleType('benchmarks'); "
        f"benchmarks.__path__ = [{str(ROOT / 'benchmarks')!r}]; sys.modules['benchmarks'] = benchmarks; "
        f"from benchmarks.{work}"
    )
    environment = guarded() | {"PYTHONPATH": f"{tree}:{tree}/engine_ext"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise BenchmarkError(f"{tree}: {done.stderr.strip().splitlines()[-1:]}")
    return msgspec.json.decode(done.stdout, type=dict[str, float])


def measure(options: argparse.Namespace, is_quick: bool, verdict: Verdict, tell: Any) -> None:
    rounds, turns = (2, 4) if is_quick else (5, 10)
    trees = [ROOT] if options.against is None else [ROOT, options.against]
    for shape in SHAPES:
        if options.only and shape.name not in options.only.split(","):
            continue
        seen = [[_asked(tree, shape, turns, is_relay=options.relay) for tree in trees] for _ in range(rounds)]
        for part in seen[0][0]:
            verdict.tell(f"{shape.name}.{part}", statistics.median(ours[part] for ours, *_ in seen))
            if options.against is not None and part in ("request", "all", OPENING):
                interval = Interval.of([ours[part] / theirs[part] for ours, theirs in seen])
                name = "ratio" if part == "all" else f"{part}_ratio"
                for kind in ("mean", "low", "high"):
                    verdict.tell(f"{shape.name}.{name}_{kind}", getattr(interval, kind))
        tell(f"{shape.name}: {verdict.figures[f'{shape.name}.all'].value} µs")


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--only", default="", help="some shapes, with commas between them")
    own.add_argument("--relay", action="store_true", help="without sessions")
    own.add_argument("--against", type=Path, help="another checkout of Turnpike")
    options, _ = own.parse_known_args(argv)
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(options, is_quick, verdict, tell),
        quick="two rounds instead of five, and fewer turns",
        own=own,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
