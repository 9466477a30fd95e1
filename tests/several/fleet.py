"""Gateway processes before one fleet, on a real Redis; engines by script; agents that are clients of all.

Each turn of an agent goes to another gateway than the turn before. As SDKs do, an agent asks again, at the
next gateway, where a connection broke before a byte of the answer came, where that took too long, and where
the answer was an error of the server. An answer that was cut in its midst it asks for anew.
"""

import asyncio
import contextlib
import json
import math
import os
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from scripted_engine.ports import free_port
from tests.server.bench import DONE, STREAM_HEAD, Backend, Client, Exchange, Message, answer, chunk, get, post
from tests.shared_state.servers import RedisCluster, RedisServer

SECRET = b"s" * 32
READY_WITHIN_S = 60.0
ATTEMPTS = 3
BETWEEN_ATTEMPTS_S = 0.05
GO_ON_WITHIN_S = 20.0
"""Ten times what they take, and more."""
KV_TOKENS = 160_000
KV = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="%d"} 1.0\n' % (KV_TOKENS // 16)


# --- engines -----------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Pace:
    """How an agent is served, and how long its tools take."""

    head_s: float = 0.02
    stream_s: float = 0.05
    tool_s: float = 0.05


@dataclass
class Served:
    agent: str
    step: int
    began_s: float
    ended_s: float = math.inf
    is_whole: bool = False


class Engines:
    """Two of them. A request says in its first words whose it is."""

    def __init__(self) -> None:
        self.backends = [Backend(), Backend()]
        self.paces: dict[str, Pace] = {}
        self.served: list[Served] = []

    async def open(self) -> None:
        for backend in self.backends:
            stored: set[str] = set()

            async def script(exchange: Exchange, stored: set[str] = stored) -> None:
                await self._serve(exchange, stored)

            backend.script, backend.metrics = script, KV
            await backend.open()

    async def close(self) -> None:
        for backend in self.backends:
            await backend.close()

    def of_step(self, agent: str, step: int) -> list[Served]:
        return [each for each in self.served if each.agent == agent and each.step == step]

    async def _serve(self, exchange: Exchange, stored: set[str]) -> None:
        body = exchange.request.json()
        if exchange.request.target == b"/v1/responses":
            await self._serve_response(exchange, body, stored)
            return
        messages = body["messages"]
        agent = messages[0]["content"].split(":")[0]
        served = Served(agent, sum(each["role"] == "tool" for each in messages), now())
        self.served.append(served)
        made = said(f"Step {served.step} of {agent} is done, and the next one begins.")
        try:
            served.is_whole = await self._say(
                exchange, made, self.paces.get(agent, Pace()), streams=bool(body.get("stream"))
            )
        finally:
            served.ended_s = now()

    async def _say(self, exchange: Exchange, made: dict[str, Any], pace: Pace, *, streams: bool) -> bool:
        if await leaves_within(exchange, pace.head_s):
            return False
        if streams:
            return await self._stream(exchange, made, pace.stream_s)
        await exchange.send(answer(json.dumps(completion(made)).encode()))
        return True

    async def _stream(self, exchange: Exchange, made: dict[str, Any], stream_s: float) -> bool:
        await exchange.send(STREAM_HEAD)
        words = made["content"].split(" ")
        for number, word in enumerate(words):
            await exchange.send(event({"content": word if number == 0 else f" {word}"}))
            if await leaves_within(exchange, stream_s / len(words)):
                return False
        (call,) = made["tool_calls"]
        await exchange.send(event({"tool_calls": [{"index": 0, **call}]}))
        await exchange.send(event({}, finish="tool_calls") + chunk(DONE) + b"0\r\n\r\n")
        return True

    async def _serve_response(self, exchange: Exchange, body: dict[str, Any], stored: set[str]) -> None:
        before = body.get("previous_response_id")
        if before is not None and before not in stored:
            await exchange.send(answer(b'{"error":{"message":"not stored here"}}', b"404 Not Found"))
            return
        made = f"resp_{secrets.token_hex(16)}"
        stored.add(made)
        text = {"type": "output_text", "text": "Done, and on to the next.", "annotations": []}
        message = {
            "type": "message",
            "role": "assistant",
            "content": [text],
            "id": "msg_1",
            "status": "completed",
        }
        whole = {"id": made, "object": "response", "status": "completed", "output": [message]}
        await exchange.send(answer(json.dumps(whole).encode()))


async def leaves_within(exchange: Exchange, seconds: float) -> bool:
    """Waits so long; whether the gateway closes the connection meanwhile."""
    try:
        await asyncio.wait_for(exchange.reader.read(1), seconds)
    except TimeoutError:
        return False
    except OSError:
        pass
    exchange.close()
    return True


def said(text: str) -> dict[str, Any]:
    call = {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command":"make test"}'},
    }
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def completion(made: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "message": made, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 90, "completion_tokens": 30}
    return {"id": f"chatcmpl-{secrets.token_hex(8)}", "choices": [choice], "usage": usage}


def event(delta: dict[str, Any], *, finish: str | None = None) -> bytes:
    data = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return chunk(b"data: %s\n\n" % json.dumps(data).encode())


# --- gateways ----------------------------------------------------------------------------------------


class ControlPlane:
    def __init__(self, port: int) -> None:
        self.control_port = port

    async def metric(self, name: str) -> float:
        """The sum over all labels; at most a quarter of a second old."""
        text = (await self._control(b"/metrics")).body.decode()
        families = text_string_to_metric_families(text)
        samples = (each for family in families for each in family.samples)
        return sum(each.value for each in samples if each.name == f"turnpike_{name}")

    async def drain(self, replica: str, *, is_draining: bool) -> None:
        body = json.dumps({"draining": is_draining}).encode()
        answered = await self._ask(post(body, f"/turnpike/replicas/{replica}/drain".encode()))
        assert answered.status == 200, answered.body

    async def post(self, path: str, body: dict[str, Any]) -> int:
        return (await self._ask(post(json.dumps(body).encode(), path.encode()))).status

    async def snapshot(self) -> Any:
        return (await self._control(b"/turnpike/snapshot")).json()

    async def is_draining(self, replica: str) -> bool:
        states = {each["id"]: each for each in (await self.snapshot())["replicas"]}
        return bool(states[replica]["is_draining"])

    async def _control(self, path: bytes) -> Message:
        return await self._ask(get(path))

    async def _ask(self, request: bytes) -> Message:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.control_port, limit=1 << 22))
        try:
            return await client.ask(request)
        finally:
            client.close()


class GatewayProcess(ControlPlane):
    """One that is started again listens where it listened before."""

    def __init__(self, directory: Path, name: str, settings: str, command: str = "serve") -> None:
        super().__init__(0)
        self.name = name
        self._command = command
        self.prelude = ""
        """Python that the process runs before anything else: another clock, another version."""
        self.port = free_port()
        self._directory = directory / name
        self._directory.mkdir()
        self._settings = (
            f'[picker]\nlisten = "127.0.0.1:{self.port}"\n'
            f'[server]\nlisten = "127.0.0.1:{self.port}"\ncontrol = "127.0.0.1:0"\ncontrol_hosts = ["gw"]\n'
            f"{settings}"
        )
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self._directory / f"log-{self._starts}"

    def start(self) -> None:
        path = self._directory / "turnpike.toml"
        path.write_text(self._settings)
        self._starts += 1
        with self.log.open("wb") as log:
            begin = f"import sys\n{self.prelude}\nfrom gateway.__main__ import main\nsys.exit(main())"
            command = [sys.executable, "-c", begin, self._command, os.fspath(path)]
            self._process = subprocess.Popen(command, stderr=log)

    async def ready(self) -> None:
        until = now() + READY_WITHIN_S
        while True:
            assert self._process is not None
            assert self._process.poll() is None and now() < until, self.log.read_text()
            _, found, where = self.log.read_text().partition("control on port ")
            if found and "\n" in where:
                self.control_port = int(where.partition("\n")[0])
                if (await self._control(b"/turnpike/readyz")).status == 200:
                    return
            await asyncio.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        status = await asyncio.to_thread(self._process.wait, 30)
        log = self.log.read_text()
        assert status == 0 and "Traceback" not in log, log
        self._process = None


@dataclass
class Fleet:
    redis: Any
    engines: Engines
    gateways: list[GatewayProcess]
    directory: Path
    settings: str
    agents: list["Agent"] = field(default_factory=list)

    async def start(self, *gateways: GatewayProcess) -> None:
        for each in gateways:
            each.start()
        for each in gateways:
            await each.ready()

    async def another(self) -> GatewayProcess:
        gateway = GatewayProcess(self.directory, f"gateway-{len(self.gateways)}", self.settings)
        self.gateways.append(gateway)
        await self.start(gateway)
        return gateway

    def agent(self, name: str, **how: Any) -> "Agent":
        agent = Agent(self, name, **how)
        self.agents.append(agent)
        return agent

    async def know_one_another(self, among: Sequence[GatewayProcess], *, within_s: float) -> None:
        for each in among:
            await comes_true(lambda each=each: is_metric(each, "peers_alive", len(among) - 1), within_s)


async def home_of_most(fleet: Fleet) -> GatewayProcess:
    await asyncio.sleep(0.3)  # so old may metrics be
    counts = [await each.metric("sessions") for each in fleet.gateways]
    return fleet.gateways[counts.index(max(counts))]


async def is_metric(gateway: GatewayProcess, name: str, value: float) -> bool:
    return await gateway.metric(name) == value


async def comes_true(check: Any, within_s: float) -> None:
    until = now() + within_s
    while not await check():
        assert now() < until, "it did not come true in time"
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def running_fleet(
    directory: Path,
    *,
    gateways: int = 2,
    command: str = "serve",
    settings: str = "",
    server: str = "shutdown_delay_s = 0\n",
    deadline_ms: int = 500,
    preludes: Sequence[str] = (),
    are_alike: bool = True,
    store: RedisCluster | None = None,
) -> AsyncIterator[Fleet]:
    """`settings`: further sections;
    `preludes`: for each gateway; `are_alike`: all may know one another; `store`: instead of a Redis of one
    node."""
    redis = store or RedisServer(directory)
    redis.start()
    engines = Engines()
    await engines.open()
    (directory / "secret").write_bytes(SECRET)
    replicas = ", ".join(f'{{ url = "{each.url}" }}' for each in engines.backends)
    whole = (
        f'{server}[shared]\nurl = "{redis.url}"\ndeadline_ms = {deadline_ms}\n'
        f"{secret_of(directory)}"
        f"[[pools]]\nreplicas = [{replicas}]\n{settings}"
    )
    processes = [GatewayProcess(directory, f"gateway-{number}", whole, command) for number in range(gateways)]
    for process, prelude in zip(processes, preludes, strict=False):
        process.prelude = prelude
    fleet = Fleet(redis, engines, processes, directory, whole)
    try:
        await fleet.start(*processes)
        if are_alike:
            await fleet.know_one_another(processes, within_s=10.0)
        yield fleet
        for agent in fleet.agents:
            agent.close()
        await asyncio.gather(*(each.end() for each in fleet.gateways))
    finally:
        for agent in fleet.agents:
            agent.close()
        for each in fleet.gateways:
            each.kill()
        redis.kill()
        await engines.close()


def secret_of(directory: Path) -> str:
    return f'secret_file = "{directory}/secret"\n'


def now() -> float:
    return time.monotonic()


# --- agents ------------------------------------------------------------------------------------------


@dataclass
class Turn:
    step: int
    began_s: float
    asked_s: float
    ended_s: float
    session: str
    replica: str
    status: int
    attempts: int


class Agent:
    def __init__(
        self,
        fleet: Fleet,
        name: str,
        *,
        streams: bool = False,
        headers: bytes = b"",
        pace: Pace | None = None,
        patience_s: float = 8.0,
        asks: Sequence[int] | None = None,
    ) -> None:
        """`patience_s`: for an answer; `asks`: the numbers of the gateways that it asks, by default all."""
        self.name = name
        self.turns: list[Turn] = []
        self.failures: Counter[str] = Counter()
        self.lost: list[str] = []
        """Turns that all attempts failed of, and why the last one did."""
        self.asks = list(asks) if asks is not None else list(range(len(fleet.gateways)))
        self.pace = fleet.engines.paces[name] = pace or Pace()
        self._fleet = fleet
        self._streams = streams
        self._headers = headers
        self._patience_s = patience_s
        self._next = len(fleet.agents)
        self._clients: dict[int, Client] = {}
        self.messages: list[dict[str, Any]] = [
            {"role": "user", "content": f"{name}: fix the tests of module {name}."}
        ]

    @property
    def states_id(self) -> bool:
        return bool(self._headers)

    @property
    def sessions(self) -> list[str]:
        return list(dict.fromkeys(turn.session for turn in self.turns))

    async def run(self, *, turns: int = 1_000_000, until: asyncio.Event | None = None) -> None:
        for _ in range(turns):
            if until is not None and until.is_set():
                return
            await self.turn()
            await asyncio.sleep(self.pace.tool_s)

    async def turn(self) -> Turn:
        """Asks until there is an answer; what the tool says then goes with the next turn."""
        step, began_s = len(self.turns), now()
        tools = [{"type": "function", "function": {"name": "bash"}}]
        body = {"model": "m", "messages": self.messages, "tools": tools, "stream": self._streams}
        request = post(json.dumps(body).encode(), headers=self._headers)
        attempts = 0
        while True:
            attempts += 1
            self._next += 1
            asked_s = now()
            response = await self._attempt(self.asks[self._next % len(self.asks)], request)
            if isinstance(response, Message):
                break
            self.failures[response] += 1
            if response != "cut" and attempts % ATTEMPTS == 0:
                self.lost.append(f"{step}: {response}")
                assert len(self.lost) < 20, self.lost
            await asyncio.sleep(BETWEEN_ATTEMPTS_S)
        session, replica = (
            (response.get(b"x-turnpike-" + each) or b"").decode() for each in (b"session", b"replica")
        )
        turn = Turn(step, began_s, asked_s, now(), session, replica, response.status, attempts)
        self.turns.append(turn)
        assert turn.status == 200, response.body
        made = assembled(response.body) if self._streams else response.json()["choices"][0]["message"]
        (call,) = made["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": f"ok, {secrets.token_hex(4)}"}
        self.messages += [made, result]
        return turn

    async def _attempt(self, number: int, request: bytes) -> Message | str:
        client = self._clients.pop(number, None)
        response: Message | None = None
        try:
            async with asyncio.timeout(self._patience_s):
                if client is None:
                    port = self._fleet.gateways[number].port
                    client = Client(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 22))
                client.send(request)
                response = await client.receive()
        except ConnectionRefusedError:
            return "refused"
        except TimeoutError:  # an OSError, too
            return "late"
        except (OSError, EOFError):
            return "broken"
        finally:
            if client is not None and (response is None or not response.is_whole):
                client.close()
        if not response.is_whole:
            return "cut"
        if response.get(b"connection") == b"close":
            client.close()
        else:
            self._clients[number] = client
        if response.status >= 500 or response.status in (408, 409, 429):
            return str(response.status)
        return response

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()


def assembled(body: bytes) -> dict[str, Any]:
    content, calls = "", []
    for line in body.split(b"\n"):
        if line.startswith(b"data: {"):
            delta = json.loads(line.removeprefix(b"data: "))["choices"][0]["delta"]
            content += delta.get("content") or ""
            calls += [{**each, "index": 0} for each in delta.get("tool_calls", ())]
    for call in calls:
        del call["index"]
    return {"role": "assistant", "content": content, "tool_calls": calls}


@contextlib.asynccontextmanager
async def at_work(*agents: Agent) -> AsyncIterator[None]:
    """They run as long as the block does, and end their turns; whatever one of them raises is raised."""
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(agent.run(until=over))
        try:
            yield
        finally:
            over.set()


def failures_of(agents: Sequence[Agent]) -> Counter[str]:
    return sum((agent.failures for agent in agents), Counter())


def slowest_s(agents: Sequence[Agent], *, since_s: float = 0.0, until_s: float = math.inf) -> float:
    """What a turn that began and ended between took beyond what engines take for it, at most."""
    return max(_beyond_engines_s(agents, since_s, until_s))


def median_s(agents: Sequence[Agent], *, since_s: float, until_s: float) -> float:
    """As `slowest_s`, of half of the turns: a busy machine makes a few of them late."""
    return statistics.median(_beyond_engines_s(agents, since_s, until_s))


def _beyond_engines_s(agents: Sequence[Agent], since_s: float, until_s: float) -> list[float]:
    return [
        turn.ended_s - turn.began_s - agent.pace.head_s - agent.pace.stream_s
        for agent in agents
        for turn in agent.turns
        if since_s <= turn.began_s and turn.ended_s < until_s
    ]


async def all_go_on(agents: Sequence[Agent], *, turns: int) -> None:
    """Each has so many turns more, from their first attempt to their end; at its own pace."""
    since_s = now()

    async def have_gone_on() -> bool:
        return all(sum(turn.began_s >= since_s for turn in agent.turns) >= turns for agent in agents)

    await comes_true(have_gone_on, GO_ON_WITHIN_S)
