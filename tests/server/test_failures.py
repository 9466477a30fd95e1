"""Failures are seen and do not spread: replicas that die of a request,
that never come up or answer nothing, and a gateway whose own loop stands still."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.bench import (
    CHAT,
    CHAT_ANSWER,
    DELTA,
    DONE,
    STREAM_HEAD,
    Backend,
    Client,
    Exchange,
    answer,
    chunk,
    eventually,
    get,
    post,
    sends,
)

STREAM = post(CHAT.replace(b"{", b'{"stream":true,', 1))
WHOLE_STREAM = STREAM_HEAD + chunk(DELTA) + chunk(DONE) + b"0\r\n\r\n"


async def metrics_of(bench) -> str:
    return (await bench.control(get(b"/metrics"))).body.decode()


# --- a request that replicas die of ------------------------------------------------------------------


class Mortal(Backend):
    """Dies of poison: its port is closed, and so are its connections."""

    is_dead = False

    def __init__(self, last_words: bytes = b"") -> None:
        super().__init__()
        self.script = self._serve_or_die
        self._last_words = last_words

    async def _serve_or_die(self, exchange: Exchange) -> None:
        if b"poison" not in exchange.request.body:
            await exchange.send(answer())
            return
        self.is_dead = True
        if self._last_words:
            await exchange.send(self._last_words)
            await asyncio.sleep(0.05)  # so that it is read before the reset
        assert self._server is not None
        self._server.close()
        exchange.reset()
        for writer in tuple(self._writers):
            writer.transport.abort()


POISON = b'{"model":"m","input":"poison"}'
CHAT_POISON = post(CHAT.replace(b"hi", b"poison"))
BEGINS = STREAM_HEAD + chunk(DELTA)
# Of which vLLM reads the conversation; we do not.
UNREAD = b'{"model":"m","messages":[{"role":"user","content":"poison"}],"x":[%s0]}' % (b"0," * 2**19)


def form(number: int) -> bytes:
    body = b'--@\r\nContent-Disposition: form-data; name="file"\r\n\r\npoison\r\n--@--'
    sent = post(body, b"/v1/audio/transcriptions").replace(
        b"application/json", b"multipart/form-data; boundary=@"
    )
    return sent.replace(b"@", b"%d" % number)


FORMS = [form(number) for number in range(4)]
DEADLY: dict[str, tuple[list[bytes], bytes]] = {
    "before the head": ([CHAT_POISON], b""),
    "stored": ([post(POISON, b"/v1/responses")], b""),
    "stored, in its stream": ([post(POISON, b"/v1/responses")], BEGINS),
    "in its stream": ([CHAT_POISON], BEGINS),
    "half an answer": ([CHAT_POISON], answer()[:-9]),
    "no end": ([CHAT_POISON], b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + DELTA),
    "an error": ([CHAT_POISON], answer(b"{}", b"500 EngineDeadError")),
    "an error inside": ([CHAT_POISON], answer(b'{"error":{"code":500}}')),
    "unread": ([post(UNREAD)], b""),
    "a form": (FORMS, b""),
    "a form, half an answer": (FORMS, answer()[:-9]),
    **{
        path: ([post(POISON, path.encode())], b"")
        for path in "/v1/embeddings /tokenize /score /invocations /v1/completions /unheard/of".split()
    },
}


@pytest.mark.parametrize("are_kept", [False, True], ids=["fresh", "kept"])
@pytest.mark.parametrize(("asked", "last_words"), DEADLY.values(), ids=DEADLY)
async def test_a_poison_request_costs_two_replicas_at_most(start, asked, last_words, are_kept):
    """Also if its client asks again, as SDKs do unless they are told not to."""
    bench = await start(replicas=4, backend=lambda: Mortal(last_words), core={"max_attempts": 9})
    if are_kept:
        for response in await asyncio.gather(*[bench.ask(post()) for _ in range(8)]):
            assert response.status == 200

    def dead() -> int:
        return sum(backend.is_dead for backend in bench.backends)

    answers = []
    for number in range(4):
        answers.append(await bench.ask(asked[number % len(asked)]))
        await eventually(lambda: sum(not state.is_up for state in bench.brain.fleet) == dead())
    assert answers[-1].json()["error"]["code"] == "upstream_broken_twice"
    assert answers[-1].get(b"x-should-retry") == b"false" and dead() <= 2
    innocent = post(POISON.replace(b"poison", b"hi"), asked[0].split()[1])
    for _ in range(4):
        assert (await bench.ask(innocent)).status == 200, "the others live"


async def test_a_replica_that_an_operator_restarts_costs_its_clients_one_retry(start):
    bench = await start(replicas=2, backend=lambda: Mortal(BEGINS))
    assert not (await bench.ask(CHAT_POISON)).is_whole
    [other] = [backend for backend in bench.backends if not backend.is_dead]
    other.script = sends(answer())
    assert (await bench.ask(CHAT_POISON)).status == 200


async def test_replicas_that_live_on_have_not_died_of_a_body(start):
    """A proxy in between was restarted, say; the client may come again once checks have found them well."""

    async def resets(exchange: Exchange) -> None:
        exchange.reset()

    bench = await start(replicas=2, script=resets)
    began_s = bench.gateway.driver.clock()
    assert (await bench.ask(post())).json()["error"]["code"] == "upstream_broken_twice"
    for backend in bench.backends:
        backend.script = sends(answer())
    await eventually(lambda: all(state.checked_s > began_s for state in bench.brain.fleet))
    assert (await bench.ask(post())).status == 200


# --- a replica that answers nothing, of a gateway that has seen little -------------------------------


async def test_a_newcomer_that_answers_nothing_is_found_by_the_others(start):
    bench = await start(replicas=3)
    for backend in bench.backends[1:]:
        backend.script = sends(WHOLE_STREAM)
    bench.backends[0].script = Exchange.until_left
    waiting = []
    for _ in range(40):
        client = await bench.send(STREAM)
        waiting.append(client)
        await asyncio.sleep(0.05)
    assert len(bench.backends[0].seen) < 12
    assert 'replica="default-0",state="ejected"} 1.0' in await metrics_of(bench)


# --- gateways as processes ---------------------------------------------------------------------------


class Process:
    """A gateway as users start it, which logs JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self.clients: list[Client] = []

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == event]

    async def read_log(self) -> None:
        assert self.process.stderr is not None
        lines = [line async for line in self.process.stderr if not self._take(line)]
        assert not lines, b"".join(lines).decode()

    def _take(self, line: bytes) -> bool:
        if is_json := line.startswith(b"{"):
            self.log.append(json.loads(line))
        return is_json

    async def connect(self, port: str = "port") -> Client:
        there = await asyncio.open_connection("127.0.0.1", self.logged("listening")[0][port])
        self.clients.append(Client(*there))
        return self.clients[-1]

    async def control(self, path: bytes) -> bytes:
        return (await (await self.connect("control_port")).ask(get(path))).body


ALWAYS = {"TURNPIKE_SERVER__LOG_FORMAT": "json", "TURNPIKE_SERVER__CONTROL_HOSTS": '["gw"]'}


@contextlib.asynccontextmanager
async def process(*backends: str, **settings: object) -> AsyncIterator[Process]:
    variables = {f"TURNPIKE_{name.upper()}": str(value) for name, value in settings.items()}
    arguments = [word for url in backends for word in ("--backend", url)]
    command = ("-m", "gateway", "serve", *arguments, "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0")
    started = await asyncio.create_subprocess_exec(
        sys.executable, *command, stderr=asyncio.subprocess.PIPE, env={**os.environ, **ALWAYS, **variables}
    )
    gateway = Process(started)
    reading = asyncio.create_task(gateway.read_log())
    try:
        async with asyncio.timeout(60):
            while not gateway.logged("started"):
                await asyncio.sleep(0.05)
        yield gateway
    finally:
        for client in gateway.clients:
            client.close()
            with contextlib.suppress(OSError):
                await client.writer.wait_closed()
        started.send_signal(signal.SIGINT)
        await started.wait()
        await reading


@pytest.fixture
async def backends() -> AsyncIterator[list[Backend]]:
    opened = [Backend(), Backend()]
    for backend in opened:
        await backend.open()
    yield opened
    for backend in opened:
        await backend.close()


async def test_a_replica_that_never_came_up_is_seen(backends):
    await backends[1].close()
    async with process(*[backend.url for backend in backends]) as gateway:
        client = await gateway.connect()
        assert (await client.ask(post())).body == CHAT_ANSWER
        client.close()
        told = await gateway.control(b"/metrics")
        assert b'turnpike_replica_up{replica="default-0"} 1.0' in told
        assert b'turnpike_replica_up{replica="default-1"} 0.0' in told
        assert json.loads(await gateway.control(b"/turnpike/readyz"))["down"] == {
            "default-1": "Connection refused"
        }
        replicas = json.loads(await gateway.control(b"/turnpike/snapshot"))["replicas"]
        assert [(each["is_up"], each["cause"]) for each in replicas] == [
            (True, ""),
            (False, "Connection refused"),
        ]
        await eventually(lambda: gateway.logged("replica_down"))
    [down] = gateway.logged("replica_down")
    assert (down["level"], down["replica"], down["cause"]) == ("warning", "default-1", "Connection refused")
    assert gateway.logged("replica_up")[0]["replica"] == "default-0"
    assert gateway.logged("started")[0]["settings"]["server.log_format"] == '"json"'
    assert gateway.logged("drain")
    await backends[1].open()


async def test_a_replica_that_accepts_and_is_silent_is_named_after_3_s(backends):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with process(backends[0].url, url, upstream__health_timeout_s=60.0) as gateway:
            await eventually(lambda: gateway.logged("replica_down"))
            down = json.loads(await gateway.control(b"/turnpike/readyz"))["down"]
            assert down == {"default-1": "no answer for 3 s"}


async def test_nobody_is_refused_while_replicas_come_up(backends):
    await backends[0].close()
    async with process(backends[0].url, upstream__health_period_s=0.2) as gateway:
        client = await gateway.connect()
        client.send(post())
        await asyncio.sleep(0.5)
        await backends[0].open()
        assert (await client.receive()).status == 200, "it waited for no_replica_wait_s at most"
    async with process(backends[0].url, core__no_replica_wait_s=0) as gateway:
        client = await gateway.connect()
        assert (await client.ask(post())).status == 200, "checked before the port was open"


async def test_a_gateway_that_stood_still_blames_no_replica(backends):
    """Suspended while checks, streams and turns without a first token are under way, for longer than any of
    them may take."""

    async def slowly(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        for _ in range(15):
            await asyncio.sleep(0.3)
            await exchange.send(chunk(DELTA))
        await exchange.send(chunk(DONE) + b"0\r\n\r\n")

    for backend in backends:
        backend.script = slowly
    limits = {
        "upstream__stall_timeout_s": 1.5,
        "upstream__head_timeout_s": 1.5,
        "upstream__health_timeout_s": 1,
    }
    checks = {"upstream__health_period_s": 0.1, "upstream__failures_until_down": 1}
    async with process(*[backend.url for backend in backends], **limits, **checks) as gateway:
        clients = [await gateway.connect() for _ in range(6)]
        for client in clients:
            client.send(STREAM)
        await eventually(lambda: sum(len(backend.seen) for backend in backends) == 6)
        for _ in range(2):
            gateway.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(2.5)
            gateway.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.3)
        answers = [await client.receive() for client in clients]
        assert all(each.is_whole and each.body.endswith(DONE) for each in answers)
        told = (await gateway.control(b"/metrics")).decode()
    changes = [line for line in told.splitlines() if line.startswith("turnpike_replica_changes_total{")]
    assert len(changes) == 2 and all('state="up"' in line for line in changes), changes
    assert not gateway.logged("replica_down") and not gateway.logged("replica_ejected")


async def test_clients_pay_for_no_stall_of_ours(backends):
    backends[0].script = sends(answer())
    limits = {"server__limits__head_timeout_s": 1.5, "server__limits__body_stall_s": 1.5}
    async with process(backends[0].url, **limits) as gateway:
        for cut in (30, -10):
            client = await gateway.connect()
            client.send(post()[:cut])
            await asyncio.sleep(0.2)
            gateway.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.2)
            client.send(post()[cut:])
            await asyncio.sleep(3.0)
            gateway.process.send_signal(signal.SIGCONT)
            assert (await client.receive()).status == 200, cut
