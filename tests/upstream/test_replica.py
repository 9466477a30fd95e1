"""Addresses, connections that nobody wants any more, and what a version says."""

import asyncio

import pytest

from gateway.config.upstream import UpstreamConfig
from gateway.domain.fleet import Abilities
from gateway.domain.ids import PoolId, ReplicaId
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import ConnectFailed
from gateway.upstream.health import vllm_abilities
from gateway.upstream.moments import Run
from gateway.upstream.replica import Address, Replica
from gateway.wire.splice import Chunk


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
    replica = Replica(ReplicaId("r"), PoolId("p"), address, config=UpstreamConfig(), api_key=None, tls=None)
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
    run.go_on()
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
    replica = Replica(ReplicaId("r"), PoolId("p"), address, config=UpstreamConfig(), api_key=None, tls=None)

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
    run.go_on()
    async with asyncio.timeout(5):
        await asked.wait()
        replica.close()
        while not outcome:
            await asyncio.sleep(0.005)
    server.close()
    assert (outcome, connections) == (["it is no member any more"], 1)
