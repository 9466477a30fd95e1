"""A vLLM server that costs nothing: real bytes over raw sockets, no model.

It answers chat completions whole, and in each protocol that agents speak as a stream. Every running stream
gets its next event in the same step, as from an engine that generates for all of them at once. A step follows
the last at once, or at a fixed interval. Each answer carries a tool call id of its own. Besides it answers
what gateways ask a server that they watch: `/health`, `/version`, `/v1/models`; anything else is 404, as vLLM
answers what it was not started with.

    python -m benchmarks.fast_upstream [--engines N] [--events N] [--interval-ms MS]

prints the ports of its engines and serves until it is ended.
"""

import argparse
import asyncio
import itertools
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Final, cast

import httptools
import msgspec
import uvloop

from benchmarks.answers import STREAM_HEAD, StreamParts, call_id, completion_parts
from benchmarks.dialects import CHAT, MESSAGES, MODEL, RESPONSES

VLLM_VERSION: Final = "0.32.0"
_STREAMS: Final = re.compile(rb'"stream": ?true')
_MODELS: Final = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "root": MODEL,
              "parent": None, "max_model_len": 262144}],
}  # fmt: skip


def _reply(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %s\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"
    return head % (status, len(body)) + body


_PAGES: Final = {
    b"/health": _reply(b"200 OK", b""),
    b"/version": _reply(b"200 OK", json.dumps({"version": VLLM_VERSION}).encode()),
    b"/v1/models": _reply(b"200 OK", json.dumps(_MODELS).encode()),
}
_NOT_FOUND: Final = _reply(b"404 Not Found", b'{"detail":"Not Found"}')


class _Running(msgspec.Struct, eq=False):
    stream: StreamParts
    call_number: int
    done: int = 0
    """Chunks that were sent."""


class Engine:
    """Runs streams in steps: each step gives every running stream its next event."""

    def __init__(
        self,
        streams: Mapping[bytes, StreamParts],
        call_numbers: Iterator[int],
        *,
        interval_s: float,
        phase_s: float,
    ) -> None:
        """Steps fall on multiples of `interval_s`, plus `phase_s`; without an interval, on every turn."""
        self.streams = streams
        self.call_numbers = call_numbers
        self.before_call, self.after_call = completion_parts()
        self._interval_s = interval_s
        self._phase_s = phase_s
        self._running: dict[Served, _Running] = {}
        self._is_armed = False
        self._loop = asyncio.get_running_loop()

    def run(self, connection: "Served", path: bytes) -> None:
        self._running[connection] = _Running(self.streams[path], next(self.call_numbers))
        if not self._is_armed:
            self._arm()

    def drop(self, connection: "Served") -> None:
        self._running.pop(connection, None)

    def _arm(self) -> None:
        self._is_armed = True
        if self._interval_s:
            steps = math.floor((self._loop.time() - self._phase_s) / self._interval_s) + 1
            self._loop.call_at(steps * self._interval_s + self._phase_s, self._step)
        else:
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        for connection, each in tuple(self._running.items()):
            connection.transport.write(each.stream.chunk(each.done, each.call_number))
            each.done += 1
            if each.done == len(each.stream.chunks):
                del self._running[connection]
        self._is_armed = False
        if self._running:
            self._arm()


class Served(asyncio.Protocol):
    """One connection to an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body: list[bytes] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.drop(self)

    def on_url(self, url: bytes) -> None:
        self._path = url.partition(b"?")[0]

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        path, self._path = self._path, b""
        body, self._body = self._body, []
        if path not in self._engine.streams:
            self.transport.write(_PAGES.get(path, _NOT_FOUND))
        elif _STREAMS.search(b"".join(body)):
            self.transport.write(STREAM_HEAD)
            self._engine.run(self, path)
        else:
            engine = self._engine
            number = call_id(next(engine.call_numbers))
            self.transport.write(engine.before_call + number + engine.after_call)


async def serve(engines: int, events: int, interval_s: float) -> list[asyncio.Server]:
    """One server for each engine, on a port of its own; their steps are spread over the interval."""
    loop = asyncio.get_running_loop()
    streams = {each.path: StreamParts(events, each.name) for each in (CHAT, RESPONSES, MESSAGES)}
    numbers = itertools.count(1)
    servers = []
    for number in range(engines):
        engine = Engine(streams, numbers, interval_s=interval_s, phase_s=number / engines * interval_s)

        def accept(engine: Engine = engine) -> Served:
            return Served(engine)

        servers.append(await loop.create_server(accept, "127.0.0.1", 0, backlog=4096))
    return servers


async def _main(options: argparse.Namespace) -> None:
    servers = await serve(options.engines, options.events, options.interval_ms / 1e3)
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--events", type=int, default=64, help="events of a stream (default: 64)")
    parser.add_argument("--interval-ms", type=float, default=0.0, help="between steps (default: none)")
    try:
        uvloop.run(_main(parser.parse_args()))
    except KeyboardInterrupt:
        sys.exit(0)
