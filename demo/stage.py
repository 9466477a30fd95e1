"""What the agents run on: vLLM servers with the plugin, playing a script, and the gateway in front."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from demo.errors import DemoError
from demo.install import BIN, ROOT
from demo.processes import Children, Process, last_lines
from demo.progress import Say
from demo.scripts import Script, scripts
from lab.engine import tiny_model
from scripted_engine.ports import free_port
from scripted_engine.process import EngineOptions

MODEL = "scripted"
ENGINE = EngineOptions(
    served_model_names=(MODEL,),
    extra_args=("--scheduler-cls=turnpike_vllm.scheduler.TurnpikeScheduler",),
    extra_env={"VLLM_PLUGINS": "turnpike"},
)
KV_BLOCKS = 2_000
"""Of 32 tokens, of each engine that is to be short of KV; without a limit it has room for everybody."""
SMALL_ENGINE = replace(
    ENGINE,
    max_model_len=61_440,  # no more than its KV; Claude Code asks for 32,000 tokens after a prompt of 27,000
    extra_args=(*ENGINE.extra_args, "--num-gpu-blocks-override", str(KV_BLOCKS)),
    extra_env={**(ENGINE.extra_env or {}), "VLLM_SERVER_DEV_MODE": "1"},  # for `/reset_prefix_cache`
)
ENGINE_WITHIN_S = 400.0
GATEWAY_WITHIN_S = 20.0
SAY_EVERY_S = 15.0


@asynccontextmanager
async def engines(
    count: int,
    children: Children,
    directory: Path,
    say: Say,
    *,
    options: EngineOptions = ENGINE,
    more_scripts: Script | None = None,
) -> AsyncIterator[list[str]]:
    """Real vLLM servers on the CPU, started side by side; yields their URLs, stops them at the end.

    `more_scripts`: beside the agents' own, by name.
    """
    script, played = directory / "script.json", scripts()
    played["scripts"] |= more_scripts or {}
    script.write_text(json.dumps(played, indent=1))
    model = await asyncio.to_thread(tiny_model.build)
    async with AsyncExitStack() as stack:
        started = []
        for number in range(1, count + 1):
            started.append(server := await _start_engine(number, options, model, script, children))
            stack.push_async_callback(children.stop, server.process)
        say(f"starting {count} real vLLM servers on the CPU (about a minute)")
        async with asyncio.TaskGroup() as waiting:
            for server in started:
                waiting.create_task(_until_healthy(server, say, within_s=ENGINE_WITHIN_S))
        yield [server.url for server in started]


@asynccontextmanager
async def gateway(
    backends: Sequence[str],
    port: int,
    children: Children,
    directory: Path,
    say: Say,
    *,
    traces: str | None = None,
) -> AsyncIterator["Gateway"]:
    """The gateway as a user starts it; stopped at the end. `traces`: where a collector is, for OTLP/HTTP."""
    control, stream = free_port(), directory / "stream.jsonl"
    options = [part for url in backends for part in ("--backend", url)]
    options += ["--listen", f"127.0.0.1:{port}", "--control", f"127.0.0.1:{control}", "--stream", str(stream)]
    log = directory / "gateway.log"
    # No setting of the caller's own gateway may change this one.
    env = {name: value for name, value in os.environ.items() if not name.startswith("TURNPIKE_")}
    env["TURNPIKE_SERVER__SHUTDOWN_DELAY_S"] = "0"  # nothing balances load in front of it
    if traces is not None:
        env["TURNPIKE_OTEL__ENDPOINT"] = traces
    process = await children.spawn([BIN / "turnpike", "serve", *options], cwd=ROOT, env=env, log=log)
    server = _Server(
        name="the gateway",
        url=f"http://127.0.0.1:{port}",
        health=f"http://127.0.0.1:{control}/turnpike/readyz",
        process=process,
        log=log,
    )
    try:
        await _until_healthy(server, say, within_s=GATEWAY_WITHIN_S)
        yield Gateway(url=server.url, control_url=f"http://127.0.0.1:{control}", stream=stream)
    finally:
        await children.stop(process)


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """A running gateway."""

    url: str
    control_url: str
    stream: Path
    """Its information stream; complete once it has stopped."""


@dataclass(frozen=True, kw_only=True)
class _Server:
    name: str
    url: str
    health: str
    process: Process
    log: Path


async def _start_engine(
    number: int, options: EngineOptions, model: Path, script: Path, children: Children
) -> _Server:
    port, log = free_port(), script.with_name(f"engine-{number}.log")
    command, env = options.command(model, port), options.environment(script)
    process = await children.spawn(command, cwd=ROOT, env=env, log=log)
    url = f"http://{options.host}:{port}"
    return _Server(name=f"vLLM server {number}", url=url, health=f"{url}/health", process=process, log=log)


async def _until_healthy(server: _Server, say: Say, *, within_s: float) -> None:
    """Returns when the server answers; one line that names its log if it ends or takes too long."""
    started = told = time.monotonic()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
        while not await _answers(client, server.health):
            now = time.monotonic()
            if server.process.returncode is not None:
                raise DemoError(
                    f"{server.name} ended at once ({last_lines(server.log, 1)}): see {server.log}"
                )
            if now - started > within_s:
                raise DemoError(f"{server.name} was not ready within {within_s:.0f} s: see {server.log}")
            if now - told > SAY_EVERY_S:
                told = now
                say(f"waiting for {server.name}")
            await asyncio.sleep(0.2)
    say(f"{server.name} is ready at {server.url}")


async def _answers(client: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with client.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
