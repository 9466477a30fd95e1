"""Clients behind load balancers, those that speak TLS, and those that do not read."""

import asyncio
import resource
import socket
import tracemalloc
from typing import Any

import pytest

from gateway.config.load import ConfigError, load_config
from gateway.server.http.connection_states import State
from tests.server.bench import Exchange, answer, eventually, get, hangs, pauses, post

LOCAL = ["127.0.0.0/8"]


def tenants(bench) -> list[str]:
    seen = bench.brain.sessions.sessions.newest_first()
    return [str(session.tenant) for session in seen][::-1]


async def test_clients_behind_an_ingress_are_tenants_of_their_own(start):
    bench = await start(server={"trusted_proxies": LOCAL})
    for client in ("203.0.113.1", "203.0.113.2", "6.6.6.6, 203.0.113.1"):
        header = f"X-Forwarded-For: {client}\r\n".encode()
        assert (await bench.ask(post(headers=header))).status == 200
    one, two, again = tenants(bench)
    assert one == again != two


async def test_without_trusted_proxies_nobody_passes_for_another(start):
    bench = await start()
    for client in ("203.0.113.1", "203.0.113.2"):
        assert (await bench.ask(post(headers=f"X-Forwarded-For: {client}\r\n".encode()))).status == 200
    assert len(set(tenants(bench))) == 1


async def test_the_proxy_protocol_says_who_it_is(start):
    bench = await start(server={"trusted_proxies": LOCAL, "proxy_protocol": True})
    for source in ("203.0.113.1", "203.0.113.2", "203.0.113.1"):
        client = await bench.connect()
        header = f"PROXY TCP4 {source} 127.0.0.1 1 2\r\n".encode()
        for part in (header[:7], header[7:]):
            client.send(part)
            await client.writer.drain()
            await asyncio.sleep(0)
        for _ in range(2):
            assert (await client.ask(post())).status == 200
    named = tenants(bench)
    assert len(named) == 6 and len(set(named)) == 2


async def test_header_and_request_in_one_read(start):
    bench = await start(server={"trusted_proxies": LOCAL, "proxy_protocol": True})
    client = await bench.connect()
    assert (await client.ask(b"PROXY UNKNOWN\r\n" + post())).status == 200


@pytest.mark.parametrize(
    ("trusted", "data"),
    [
        (["10.0.0.0/8"], b"PROXY TCP4 203.0.113.1 127.0.0.1 1 2\r\n" + post()),
        (LOCAL, post()),
        (LOCAL, b"PROXY X\r\n"),
    ],
)
async def test_who_is_not_trusted_or_sends_no_header_is_cut(start, trusted, data):
    bench = await start(server={"trusted_proxies": trusted, "proxy_protocol": True})
    client = await bench.send(data)
    await client.rest()
    assert not bench.backend.seen and not bench.gateway.listener.connection_count


async def test_a_header_may_come_late(start):
    bench = await start(server={"trusted_proxies": LOCAL, "proxy_protocol": True})
    client = await bench.connect()
    await asyncio.sleep(1.3)  # a sweep
    assert (await client.ask(b"PROXY UNKNOWN\r\n" + post())).status == 200


async def test_a_header_that_does_not_come_is_not_waited_for(start):
    limits = {"head_timeout_s": 0.05, "max_connections": 2}
    bench = await start(server={"trusted_proxies": LOCAL, "proxy_protocol": True}, limits=limits)
    silent = [await bench.connect() for _ in range(2)]
    await eventually(lambda: len(bench.gateway.listener._prefaces) == 2 or silent[0].reader.at_eof())
    one_more = await bench.connect()
    for client in (one_more, *silent):
        await client.rest()
    assert not bench.gateway.listener._prefaces


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"proxy_protocol": True}, "needs trusted_proxies"),
        (
            {"trusted_proxies": LOCAL, "proxy_protocol": True, "tls_certificate": "c", "tls_key": "k"},
            "exclude",
        ),
    ],
)
def test_settings_that_make_no_sense(server, why):
    with pytest.raises(ConfigError, match=why):
        load_config(None, {}, {"pools": [{"replicas": [{"url": "http://a"}]}], "server": server})


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
    monkeypatch.setattr("gateway.server.http.tls_acceptor._AGAIN_S", 0.01)
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


@pytest.mark.parametrize("connections", [1, 20])
@pytest.mark.parametrize(
    "request_", [get(b"/v1/files/x"), post(b"w" * 2000, b"/v1/files/x")], ids=["GET", "POST"]
)
async def test_pipelined_requests_are_not_held(start, request_, connections):
    hold = asyncio.Event()
    bench = await start(script=pauses(b"", hold, answer(b"{}")))
    clients = [await bench.connect() for _ in range(connections)]
    flood = request_ * (20_000 // connections)
    tracemalloc.start()
    for client in clients:
        client.send(flood)
    before, _ = tracemalloc.get_traced_memory()
    opened = bench.gateway.listener._connections
    await eventually(
        lambda: (
            len(opened) == connections
            and all(c.state is State.SERVING and c.parser.unread_bytes for c in opened)
        )
    )
    await eventually(lambda: len(bench.backend.seen) == connections)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{(held - before) / 2**20:.1f} MiB for {len(flood) * connections / 2**20:.1f} MiB")
    assert held - before < 16 << 20
    assert all(c.parser.unread_bytes <= 512 << 10 for c in opened)
    hold.set()
    for client in clients:
        for _ in range(5):
            assert (await client.receive()).status == 200
        client.reset()


async def test_what_a_client_sends_while_it_is_answered_is_bounded_and_served(start):
    hold = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await hold.wait()
        await exchange.send(answer(b"%d" % len(exchange.request.body)))

    bench = await start(script=waits)
    sizes = [1, 300_000, 7, 200_000, 0]
    client = await bench.arrive(b"".join(post(b"x" * size, b"/v1/files/x") for size in sizes))
    (connection,) = bench.gateway.listener._connections
    await eventually(lambda: connection.parser.unread_bytes > 64 << 10)
    assert connection.parser.unread_bytes <= 512 << 10 and bench.gateway.listener.budget.used == 1
    hold.set()
    for size in sizes:
        assert (await client.receive()).body == b"%d" % size


async def test_who_pipelines_a_little_and_leaves_is_noticed(start):
    left = asyncio.Event()
    bench = await start(script=hangs(left))
    client = await bench.arrive(post() + post() + post())
    client.close()
    await asyncio.wait_for(left.wait(), 10)
    assert len(bench.backend.seen) == 1


async def test_an_empty_line_behind_a_body_is_no_request(start):
    bench = await start()
    client = await bench.connect()
    for _ in range(3):
        client.send(post())
        client.send(b"\r\n")
        assert (await client.receive()).status == 200
