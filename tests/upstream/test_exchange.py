"""Exchanges with a replica: connections, requests that are sent again, redirects that nobody follows."""

import argparse
import asyncio
import contextlib
import gc
import threading
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gateway.cli import sessions as cli
from gateway.cli.host_probe import send_report
from gateway.config.telemetry import OtelConfig
from gateway.config.upstream import UpstreamConfig
from gateway.domain.engine import HostSignals
from gateway.domain.fleet import Abilities
from gateway.domain.ids import PoolId, ReplicaId
from gateway.telemetry.otel.collector import Collector, Verdict
from gateway.upstream import replica
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerMissing, ConnectFailed, UpstreamError
from gateway.upstream.health_probes import vllm_abilities
from gateway.upstream.one_shot import Run
from gateway.upstream.replica import Address, Replica
from gateway.wire.splice import Chunk

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Server:
    """Answers, until it is told to close the connection on each request instead."""

    def __init__(self):
        self.breaks = False
        self.requests = 0
        self.together = 1
        """Requests that wait for each other, so that each has a connection of its own."""
        self._writers = set()
        self._arrived = 0
        self._all_there = asyncio.Event()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        address = Address.parse(f"http://127.0.0.1:{port}")
        self.replica = Replica(ReplicaId("r"), PoolId("p"), address, config=UpstreamConfig(), api_key=None)
        return self

    async def __aexit__(self, *_):
        self.replica.close()
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader, writer):
        self._writers.add(writer)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                if self.breaks:
                    break
                self._arrived += 1
                if self._arrived == self.together:
                    self._all_there.set()
                await self._all_there.wait()
                writer.write(OK)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def run(coroutine):
    result = asyncio.get_running_loop().create_future()

    async def work():
        try:
            result.set_result(await coroutine)
        except UpstreamError as error:
            result.set_exception(error)

    Run(work(), lambda: None).advance()
    return await result


async def ask(replica, *, may_repeat=True):
    connection = await replica.exchange([GET], is_head_request=False, may_repeat=may_repeat)
    whole = connection.take_complete_body()
    replica.release(connection, reuse=whole is not None)


async def fail(replica):
    with contextlib.suppress(AnswerMissing):
        await ask(replica)
        raise AssertionError("it was answered")


async def keep(server, connections):
    server.together = connections
    await asyncio.gather(*[run(ask(server.replica)) for _ in range(connections)])
    assert len(server.replica._idle) == connections
    server.requests = 0


async def test_an_exchange_sends_its_request_at_most_twice():
    async with Server() as server:
        await keep(server, 30)
        server.breaks = True
        with pytest.raises(AnswerMissing) as failed:
            await run(ask(server.replica))
        assert server.requests == 2
        assert failed.value.resends == 1, "who asked is told that it was sent twice"


async def test_a_backend_that_closes_every_connection_gets_each_request_once():
    async with Server() as server:
        server.breaks = True
        for number in range(1, 4):
            with pytest.raises(AnswerMissing) as failed:
                await run(ask(server.replica))
            assert server.requests == number and failed.value.resends == 0


async def test_connections_that_the_backend_closed_are_not_used():
    async with Server() as server:
        await keep(server, 5)
        kept = list(server.replica._idle)
        for writer in server._writers:
            writer.close()
        while any(connection.is_reusable for connection in kept):
            await asyncio.sleep(0)
        await run(ask(server.replica))
        assert server.requests == 1
        assert not set(kept) & set(server.replica._idle), "they are dropped"


@pytest.mark.parametrize("is_kept_first", [False, True])
async def test_a_closed_connection_is_freed_without_the_collector(monkeypatch, is_kept_first):
    made = []

    class Watched(UpstreamConnection):
        def __init__(self):
            super().__init__()
            made.append(weakref.ref(self))

    monkeypatch.setattr(replica, "UpstreamConnection", Watched)
    gc.collect()
    gc.disable()
    try:
        async with Server() as server:
            for _ in range(3):
                await run(ask(server.replica))
            if is_kept_first:
                server.breaks = True
                await run(fail(server.replica))
            server.replica.close()
            for _ in range(20):
                await asyncio.sleep(0)
            assert made and all(ref() is None for ref in made)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "prefix", "is_tls"),
    [
        ("http://gpu:8000", "gpu", 8000, b"gpu:8000", b"", False),
        ("http://gpu/", "gpu", 80, b"gpu", b"", False),
        ("https://gpu/a/b/", "gpu", 443, b"gpu", b"/a/b", True),
        ("http://[::1]:9", "::1", 9, b"[::1]:9", b"", False),
        ("http://[fe80::1%25eth0]:9", "fe80::1%eth0", 9, b"[fe80::1]:9", b"", False),
    ],
)
def test_a_url_is_an_address(url, host, port, authority, prefix, is_tls):
    address = Address.parse(url)
    assert (address.host, address.port, address.authority) == (host, port, authority)
    assert (address.prefix, address.is_tls) == (prefix, is_tls)


@pytest.mark.parametrize(
    "url", ["ftp://gpu", "http://", "http://u:p@gpu", "http://gpu?x=1", "http://gpu#x", "http://gpu:99999"]
)
def test_what_is_no_address(url):
    with pytest.raises(ValueError, match=r"gpu|http://|[Pp]ort"):
        Address.parse(url)


@pytest.mark.parametrize(
    "url", ["http://gpu:1/v1", "http://gpu:1/v1/", "http://gpu:1/openai/v1", "http://[::1]:1/v1"]
)
def test_the_v1_of_a_url_for_clients_is_left_out_with_one_line(url, caplog):
    address, _ = Address.of_backend(url), Address.of_backend(url)
    assert address.url + "/v1" == url.rstrip("/") and address.prefix in (b"", b"/openai")
    assert len([line for line in caplog.messages if "/v1 at its end is left out" in line]) == 1
    assert Address.of_backend("http://gpu/x/v1/chat/completions").prefix == b"/x"
    assert Address.of_backend("http://gpu/v12").prefix == b"/v12"


def test_an_old_vllm_is_told_nothing_that_it_does_not_read():
    assert vllm_abilities("0.28.1rc2") == Abilities(engine="vllm", version="0.28.1rc2", session_header=True)
    assert vllm_abilities("0.9.0") == Abilities(engine="vllm", version="0.9.0", session_header=False)
    assert vllm_abilities("dev").session_header is False
    assert len(vllm_abilities("1" * 1000).version or "") == 64


class _Opened(UpstreamConnection):
    def __init__(self):
        super().__init__()
        self.is_aborted = False

    def abort(self):
        self.is_aborted = True


@pytest.mark.parametrize("is_ready", [False, True], ids=["not yet there", "just there"])
async def test_whoever_leaves_while_a_connection_is_made_leaves_none_behind(monkeypatch, is_ready):
    address = Address.parse("http://localhost:9")
    replica = Replica(ReplicaId("r"), PoolId("p"), address, config=UpstreamConfig(), api_key=None)
    opened, outcome = _Opened(), []

    async def opens():
        try:
            await asyncio.sleep(0 if is_ready else 60)
            return opened
        except asyncio.CancelledError:
            outcome.append("called off")
            raise

    monkeypatch.setattr(replica, "_open", opens)

    async def work():
        await replica.exchange([b"GET / HTTP/1.1\r\n\r\n"], is_head_request=False, may_repeat=True)

    run = Run(work(), lambda: outcome.append("end"))
    run.advance()
    await asyncio.sleep(0)
    if is_ready:
        # The task is done, and who asked has not heard of it yet.
        asyncio.get_running_loop().call_soon(run.cancel)
        await asyncio.sleep(0)
    else:
        run.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert "end" in outcome and replica.busy_count == 0
    assert opened.is_aborted if is_ready else "called off" in outcome


async def test_a_connection_that_was_closed_before_anything_was_sent_counts_as_none():
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, connection = await asyncio.get_running_loop().create_connection(UpstreamConnection, "127.0.0.1", port)
    connection.transport.abort()
    with pytest.raises(ConnectFailed, match="before anything was sent"):
        connection.send([b"GET / HTTP/1.1\r\n\r\n"], is_head_request=False)
    server.close()
    await server.wait_closed()


async def test_what_is_asked_of_a_replica_that_is_closed_meanwhile_is_not_sent_again():
    connections, asked = 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        asked.set()  # and gets no answer
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = Address.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    replica = Replica(ReplicaId("r"), PoolId("p"), address, config=UpstreamConfig(), api_key=None)

    async def ask() -> UpstreamConnection:
        request: list[Chunk] = [b"GET / HTTP/1.1\r\nHost: r\r\n\r\n"]
        return await replica.exchange(request, is_head_request=False, may_repeat=True)

    outcome: list[str] = []

    async def twice() -> None:
        replica.release(await ask(), reuse=True)
        try:
            replica.release(await ask(), reuse=False)
            outcome.append("answered")
        except ConnectFailed as error:
            outcome.append(str(error))

    run = Run(twice(), lambda: None)
    run.advance()
    async with asyncio.timeout(5):
        await asked.wait()
        replica.close()
        while not outcome:
            await asyncio.sleep(0.005)
    server.close()
    assert (outcome, connections) == (["it is no member any more"], 1)


@pytest.fixture(params=[301, 302, 303, 307, 308])
def redirecting(request):
    """Its URL, and what was asked beyond what it answers itself."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_elsewhere = self.path == "/elsewhere"
            asked.extend([self.headers["Authorization"]] * is_elsewhere)
            self.send_response(200 if is_elsewhere else request.param)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET  # noqa: N815 - http.server's name

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_commands_do_not(redirecting, monkeypatch):
    url, asked = redirecting
    monkeypatch.setenv("KEY", "secret")
    arguments = argparse.Namespace(control=url, key_env="KEY")
    for body in (None, b"{}"):
        with pytest.raises(ValueError, match=": 30"):
            cli.call_control(arguments, "/turnpike/snapshot", body)
    with pytest.raises(OSError, match="30"):
        send_report(url, "host", HostSignals(cores=1, runnable=0.5), key="secret")
    assert asked == []


async def test_the_sender_of_traces_does_not(redirecting):
    url, asked = redirecting
    collector = Collector(OtelConfig(endpoint=url, headers={"Authorization": "secret"}), {})
    collector.open()
    assert await collector.post(b"spans") is Verdict.REFUSED and asked == []
    await collector.close()
