"""A picker under load: how many requests does it place a second, for each core that it uses?

    python -m benchmarks.picker [--quick] [--json]

Agents' conversations of 2 and of 40 KB are asked about as Envoy asks, one gRPC stream a request: headers,
the whole body, then the answer's headers and its body with a tool call, whose result the next request brings.
The picker is `turnpike picker` on a core of its own; its CPU time counts, whatever the generator of load can
do. A *pick* is a whole request, the answer included; how long one takes is told until the endpoint is known.
"""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import grpc.aio

from benchmarks.command import judged
from benchmarks.conversations import Conversation
from benchmarks.processes import (
    ROOT,
    BenchmarkError,
    Pinning,
    cpu_seconds,
    guarded,
    on_cpus,
    upstream,
)
from benchmarks.verdict import Verdict, percentile
from gateway.server.picker.answers import DESTINATION
from gateway.server.picker.messages import ProcessingRequest, ProcessingResponse
from scripted_engine.ports import free_port

_METHOD: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_ENGINES: Final = 2
_AT_A_TIME: Final = 8
_TARGET: Final = 1_000.0
"""Picks a second and core."""
_TURNS: Final = 12


@contextlib.contextmanager
def _picker(pinning: Pinning, engines: list[int], folder: Path) -> Iterator[tuple[int, int]]:
    """Its process and its port."""
    port, control = free_port(), free_port()
    urls = ", ".join(f'{{ url = "http://127.0.0.1:{each}" }}' for each in engines)
    settings = folder / "turnpike.toml"
    settings.write_text(
        f'[server]\ncontrol = "127.0.0.1:{control}"\n[picker]\nlisten = "127.0.0.1:{port}"\n'
        f"[[pools]]\nreplicas = [{urls}]\n"
    )
    with on_cpus(pinning.gateway):
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "picker", str(settings)],
            cwd=ROOT,
            env=guarded(),
            stderr=subprocess.DEVNULL,
        )
    try:
        yield process.pid, port
    finally:
        process.terminate()
        process.wait()


class _Agent:
    """Asks turn after turn; its sessions begin anew when they have had their turns."""

    def __init__(self, channel: Any, number: int, size: int) -> None:
        self._call = channel.stream_stream(
            _METHOD,
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )
        self._talk = Conversation(
            random.Random(number), first_bytes=size, turn_bytes=size // 20, turns=_TURNS, stream=False
        )
        self._rng = random.Random(-number)
        self.picks_s: list[float] = []

    async def turn(self) -> None:
        _, *parts = self._talk.request()  # its head is HTTP/1.1
        body = b"".join(parts)
        call_id = f"chatcmpl-tool-{self._rng.getrandbits(128):032x}"
        began_s = time.perf_counter()
        stream = self._call()
        await stream.write(_headers("request_headers", len(body)))
        await _expect(stream, "request_headers")
        message = ProcessingRequest()
        message.request_body.body, message.request_body.end_of_stream = body, True
        await stream.write(message)
        reply = await _expect(stream, "request_body")
        self.picks_s.append(time.perf_counter() - began_s)
        told_headers = reply.request_body.response.header_mutation.set_headers
        if not any(each.header.key == DESTINATION for each in told_headers):
            raise BenchmarkError("the picker names no endpoint")
        answer = _answer(call_id)
        await stream.write(_headers("response_headers", len(answer)))
        await _expect(stream, "response_headers")
        message = ProcessingRequest()
        message.response_body.body, message.response_body.end_of_stream = answer, True
        await stream.write(message)
        await _expect(stream, "response_body")
        await stream.done_writing()
        self._talk.answered(call_id.encode())


def _headers(field: str, length: int) -> Any:
    message = ProcessingRequest()
    fields = {":status": "200", "content-type": "application/json", "content-length": str(length)}
    if field == "request_headers":
        fields = {
            ":method": "POST",
            ":path": "/v1/chat/completions",
            ":authority": "gateway",
            ":scheme": "http",
            "content-type": "application/json",
            "content-length": str(length),
            "user-agent": "AsyncOpenAI/Python 2.8.1",
            "authorization": "Bearer none",
            "accept": "application/json",
            "x-stainless-lang": "python",
            "x-request-id": "e8a6d1a4-52f5-4b6a-9b39-6a2f4a5a1c11",
            "x-forwarded-for": "10.0.0.1",
            "x-forwarded-proto": "http",
        }
    for name, value in fields.items():
        getattr(message, field).headers.headers.add(key=name.encode(), raw_value=value.encode())
    return message


def _answer(call_id: str) -> bytes:
    call = {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return json.dumps(
        {
            "id": f"chatcmpl-{call_id[-8:]}",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 500, "completion_tokens": 20},
        }
    ).encode()


async def _expect(stream: Any, field: str) -> Any:
    reply = await stream.read()
    if reply is grpc.aio.EOF or not reply.HasField(field):
        raise BenchmarkError(f"the picker does not answer {field}: {reply}"[:500])
    return reply


async def _load(port: int, pid: int, size: int, seconds: float) -> tuple[float, float, list[float]]:
    """Picks a second and core, the share of a core in use, and how long each pick took."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        agents = [_Agent(channel, number, size) for number in range(_AT_A_TIME)]
        for _ in range(2 * _TURNS):  # until its engines are up, and code is warm
            await asyncio.gather(*(each.turn() for each in agents))
        for each in agents:
            each.picks_s.clear()
        ends_s, cpu_s, began_s = time.perf_counter() + seconds, cpu_seconds(pid), time.perf_counter()

        async def ask(agent: _Agent) -> None:
            while time.perf_counter() < ends_s:
                await agent.turn()

        await asyncio.gather(*(ask(each) for each in agents))
        used_s, wall_s = cpu_seconds(pid) - cpu_s, time.perf_counter() - began_s
    picks = [each for agent in agents for each in agent.picks_s]
    return len(picks) / used_s, used_s / wall_s, picks


def measure(quick: bool, verdict: Verdict, tell: Any) -> None:
    seconds = 4.0 if quick else 20.0
    pinning = Pinning.of_this_machine()
    with (
        upstream(pinning, engines=_ENGINES) as engines,
        TemporaryDirectory() as folder,
        _picker(pinning, engines, Path(folder)) as (pid, port),
    ):
        for size in (2_000, 40_000):
            rate, share, picks_s = asyncio.run(_load(port, pid, size, seconds))
            name = f"{size // 1000}kb"
            tell(f"{name}: {rate:.0f} picks a CPU second, {share:.2f} of a core used")
            if size == 2_000:
                verdict.at_least(f"picks_per_core_s_{name}", rate, _TARGET)
            else:
                verdict.tell(f"picks_per_core_s_{name}", rate)
            verdict.tell(f"pick_p50_ms_{name}", 1e3 * percentile(picks_s, 50))
            verdict.tell(f"pick_p99_ms_{name}", 1e3 * percentile(picks_s, 99))


if __name__ == "__main__":
    sys.exit(judged(__file__, __doc__, measure, quick="4 s instead of 20 for each size"))
