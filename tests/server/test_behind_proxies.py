"""Clients behind load balancers are told apart, without keys by their addresses."""

import asyncio

import pytest

from gateway.config.load import ConfigError, load_config
from tests.server.bench import eventually, post

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
