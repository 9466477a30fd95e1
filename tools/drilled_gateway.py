"""A real gateway before scripted engines, and what an operator sees of it: for `tools.fault_drill`."""

import asyncio
import contextlib
import datetime
import json
import os
import secrets
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import trustme

from scripted_engine.ports import free_port
from tests.server.bench import Backend, Client, Exchange, Message, completion, get, post
from tests.server.test_alerts_fire import fired, samples

_QUIET: Final = ("turnpike_records", "process_", "python_", "turnpike_loop_lag", "turnpike_build")
_TELLING: Final = (b"retry-after", b"x-should-retry", b"x-turnpike-bound", b"x-turnpike-queue-ms")
_OF_REPLICA: Final = (
    *("id", "is_up", "cause", "ejected", "ejected_until_s"),
    *("running", "engine_running", "engine_waiting", "kv_used"),
)
_OF_TURN: Final = ("wait_reason", "queue_ms", "replica", "reason", "outcome", "status", "refusal")

_VLLM: Final = (
    'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}",enable_prefix_caching="True"}} 1\n'
    "vllm:kv_cache_usage_perc {used}\nvllm:num_requests_running {running}\n"
    "vllm:num_requests_waiting {waiting}\nvllm:num_preemptions_total {preemptions}\n"
)


class Drill:
    """One gateway, its engines, and what was seen of it since `mark`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines: list[Backend] = []
        self.answers: list[str] = []
        self.port, self.control_port = free_port(), free_port()
        self.names = {
            str(self.port): "8080",
            str(self.control_port): "8081",
            str(folder): "/var/lib/turnpike",
        }
        self.tls_client: ssl.SSLContext | None = None
        self.env: dict[str, str] = {}
        self._log_from, self._before = 0, b""

    async def engine(self, tls: ssl.SSLContext | None = None) -> Backend:
        backend = Backend()
        await backend.open(tls)
        self.engines.append(backend)
        self.names |= {
            f"localhost:{backend.port}": f"gpu-{len(self.engines)}:8000",
            str(backend.port): "8000",
        }
        return backend

    @contextlib.asynccontextmanager
    async def gateway(self, *, server: str = "", pools: str = "", more: str = "") -> AsyncIterator[None]:
        """The arguments: what stands in the section, what instead of one pool of all, and what else."""
        replicas = ", ".join(f'{{ url = "{each.url}" }}' for each in self.engines)
        one_pool = f"[[pools]]\nreplicas = [{replicas}]"
        head = f'listen = "127.0.0.1:{self.port}"\ncontrol = "127.0.0.1:{self.control_port}"\n'
        head += "shutdown_delay_s = 0"
        settings = self.folder / "turnpike.toml"
        settings.write_text(f'[server]\n{head}\nlog_format = "json"\n{server}\n{pools or one_pool}\n{more}\n')
        with (self.folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway", "serve", str(settings)),
                stderr=log,
                env={**os.environ, **self.env},
            )
        try:
            while '"listening"' not in self.log():
                if process.returncode is not None:
                    raise RuntimeError(self.log())
                await asyncio.sleep(0.1)
            await asyncio.sleep(2.5)  # until all replicas were looked at
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()

    def log(self) -> str:
        return (self.folder / "log").read_bytes()[self._log_from :].decode()

    async def mark(self) -> None:
        """From here on the fault counts."""
        self._before = (await self.control("/metrics")).body
        self._log_from = (self.folder / "log").stat().st_size

    async def ask(self, data: bytes, *, tells: bool = True) -> Message | None:
        """One request of a client; what it saw is kept if it `tells`."""
        try:
            response = await exchange(self.port, data, self.tls_client)
        except (OSError, EOFError) as error:
            self.answers += [f"no answer: {error!r}"] * tells
            return None
        fields = [f"{n.decode()}: {v.decode()}" for n, v in response.headers if n.lower() in _TELLING]
        text = response.body[:600].decode(errors="replace")
        self.answers += [f"{response.status} {'; '.join(fields)}\n    {text}"] * tells
        return response

    async def asks(self, *requests: bytes) -> None:
        """At a time; the last one is told."""
        await asyncio.gather(*(self.ask(each, tells=each is requests[-1]) for each in requests))

    async def control(self, path: str) -> Message:
        return await exchange(self.control_port, get(path.encode()).replace(b"gw", b"localhost"), None)

    async def command(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", *arguments),
            cwd=self.folder,
            env={**os.environ, **self.env},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        return f"$ turnpike {' '.join(arguments)}\n{out.decode()}(exit code {process.returncode})"

    async def report(self) -> None:
        after = (await self.control("/metrics")).body
        ready = await self.control("/turnpike/readyz")
        snapshot = json.loads((await self.control("/turnpike/snapshot")).body)
        alerts = await asyncio.to_thread(fired, self._before, after, self.folder)
        self.show("log", self.log() or "(nothing)")
        self.show("clients", "\n".join(self.answers))
        self.show("readyz", f"{ready.status} {ready.body.decode()}")
        self.show("snapshot", "\n".join(_of_snapshot(snapshot)))
        self.show("metrics", "\n".join(_changes(self._before, after)))
        self.show("alerts", ", ".join(sorted(alerts)) or "none")
        self.show("doctor", await self.command("doctor", "turnpike.toml"))

    async def close(self) -> None:
        for engine in self.engines:
            await engine.close()

    def show(self, name: str, text: str) -> None:
        for what, neutral in self.names.items():
            text = text.replace(what, neutral)
        print(f"-- {name}\n{text}", flush=True)


async def exchange(port: int, data: bytes, tls: ssl.SSLContext | None) -> Message:
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    client = Client(reader, writer)
    try:
        writer.write(data)
        response = Message(await reader.readuntil(b"\r\n\r\n"))
        if response.status != 204:
            await client._receive_body(response)  # noqa: SLF001 - `receive` waits for ten seconds at most
        return response
    finally:
        client.close()


def _of_snapshot(snapshot: dict[str, Any]) -> list[str]:
    lines = [
        json.dumps({name: snapshot[name] for name in ("session_count", "running", "waiting", "store_down")})
    ]
    lines += [json.dumps({name: each[name] for name in _OF_REPLICA}) for each in snapshot["replicas"]]
    for each in snapshot["pools"]:
        updates = [{n: u.get(n) for n in ("reason", "window", "kv_budget")} for u in each.pop("updates")[-3:]]
        lines.append(json.dumps({**each, "updates": updates}))
    for each in snapshot["sessions"][:3]:
        turn = each["last_turns"][-1] if each["last_turns"] else {}
        lines.append(json.dumps({"state": each["state"], **{name: turn.get(name) for name in _OF_TURN}}))
    return lines


def _changes(before: bytes, after: bytes) -> list[str]:
    old = samples(before)
    return [
        f"{name}{{{labels}}} {old.get((name, labels), 0):g} -> {value:g}"
        for (name, labels), value in samples(after).items()
        if value != old.get((name, labels), 0.0) and not name.startswith(_QUIET) and "_bucket" not in name
    ]


def chat(text: str, *steps: dict[str, Any], model: str = "m", **headers: str) -> bytes:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}, *steps]}).encode()
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return post(body, headers=fields.encode())


def metrics(*, blocks: int, used: float, running: int, waiting: int = 0, preemptions: int = 0) -> bytes:
    text = _VLLM.format(blocks=blocks, used=used, running=running, waiting=waiting, preemptions=preemptions)
    return text.encode()


def works(seconds: float) -> Callable[[Exchange], Awaitable[None]]:
    async def answers(theirs: Exchange) -> None:
        await asyncio.sleep(seconds)
        function = {"name": "bash", "arguments": '{"c":"make"}'}
        call = {"id": f"chatcmpl-tool-{secrets.token_hex(12)}", "type": "function", "function": function}
        await theirs.send(completion({"role": "assistant", "tool_calls": [call]}))

    return answers


def after(response: Message | None, result: str) -> list[dict[str, Any]]:
    """What an agent appends: what was answered, and what its call gave."""
    if response is None or response.status != 200:
        return []
    said = response.json()["choices"][0]["message"]
    return [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": result}]


@contextlib.asynccontextmanager
async def crowd(drill: Drill, *, count: int, words: int, tool_s: float = 0.3) -> AsyncIterator[None]:
    """Agents that ask, run a tool and ask again, until this is left."""

    async def agent(number: int) -> None:
        steps: list[dict[str, Any]] = []
        while True:
            ask = chat(f"task {number} {'word ' * words}", *steps, X_Session_ID=f"agent-{number}")
            answered = await drill.ask(ask, tells=not steps and number == count - 1)
            steps += after(answered, f"{len(steps)} of {number}")
            await asyncio.sleep(tool_s)

    agents = [asyncio.create_task(agent(number)) for number in range(count)]
    try:
        yield
    finally:
        for each in agents:
            each.cancel()
        await asyncio.gather(*agents, return_exceptions=True)


def certificate(drill: Drill, ends: datetime.datetime) -> tuple[trustme.CA, trustme.LeafCert]:
    authority = trustme.CA()
    own = authority.issue_cert("localhost", not_after=ends)
    authority.cert_pem.write_to_path(str(drill.folder / "ca.pem"))
    own.private_key_and_cert_chain_pem.write_to_path(str(drill.folder / "own.pem"))
    return authority, own


def yesterday() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
