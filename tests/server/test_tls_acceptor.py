"""Clients that speak TLS, and those that never get to it."""

import asyncio
import resource
import socket
from typing import Any

from tests.server.bench import eventually, get, post


def acceptor(bench: Any) -> Any:
    return bench.gateway.listener._tls


async def test_handshakes_that_never_end_count_as_connections(start, tls):
    server, trust = tls
    bench = await start(server=server, limits={"max_connections": 3})
    silent = [await bench.connect() for _ in range(3)]
    await eventually(lambda: len(acceptor(bench)) == 3)
    one_more = await bench.connect()
    assert (await one_more.rest())[0] == b""
    silent[0].close()
    await eventually(lambda: len(acceptor(bench)) == 2)
    client = await bench.connect(ssl=trust)
    assert (await client.ask(post())).status == 200
    await eventually(lambda: len(acceptor(bench)) == 2)
    metrics = (await bench.control(get(b"/metrics"))).body
    assert b"\nturnpike_client_connections 3.0\n" in metrics


async def test_as_many_as_may_be_are_served(start, tls):
    server, trust = tls
    bench = await start(server=server, limits={"max_connections": 3})
    clients = await asyncio.gather(*(bench.connect(ssl=trust) for _ in range(3)))
    answers = await asyncio.gather(*(client.ask(post()) for client in clients))
    assert [answer.status for answer in answers] == [200] * 3
    await eventually(lambda: not len(acceptor(bench)))
    assert bench.gateway.listener.connection_count == 3


async def test_a_handshake_that_takes_too_long_is_given_up(start, tls):
    bench = await start(server=tls[0], limits={"head_timeout_s": 0.05})
    client = await bench.connect()
    client.send(b"\x16\x03\x01")  # the beginning of one
    await client.rest()
    await eventually(lambda: not len(acceptor(bench)))


async def test_what_is_no_tls_is_closed(start, tls):
    bench = await start(server=tls[0])
    client = await bench.send(post())
    data, _ = await client.rest()
    assert not data.startswith(b"HTTP/1.1") and not bench.backend.seen
    await eventually(lambda: not len(acceptor(bench)))


async def test_a_drain_gives_up_on_handshakes_and_accepts_nothing(start, tls):
    bench = await start(server=tls[0])
    client, port = await bench.connect(), bench.gateway.listener.port
    await eventually(lambda: len(acceptor(bench)) == 1)
    await bench.gateway.listener.drain(1.0)
    await client.rest()

    def is_refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except ConnectionRefusedError:
            return True
        return False

    await eventually(is_refused)


async def test_a_system_without_descriptors_is_asked_again(start, tls, monkeypatch):
    server, trust = tls
    bench = await start(server=server)
    monkeypatch.setattr("gateway.server.tls_acceptor._AGAIN_S", 0.01)
    with socket.socket() as raw:
        raw.setblocking(False)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", bench.gateway.listener.port))
            await asyncio.sleep(0.1)
            assert not len(acceptor(bench))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await eventually(lambda: len(acceptor(bench)) == 1)
    client = await bench.connect(ssl=trust)
    assert (await client.ask(post())).status == 200
