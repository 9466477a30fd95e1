"""Connections whose other end is gone without a word are found out."""

import socket
from typing import Any

import pytest

from tests.server.bench import post


def options(transport):
    found = transport.get_extra_info("socket")
    return [
        bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)),
        found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
        found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
    ]


@pytest.mark.parametrize("is_tls", [False, True])
async def test_both_sides_are_kept_alive(start, tls, tls_upstream, is_tls):
    server, trust = tls
    settings: dict[str, Any] = {"limits": {"tcp_keepalive_s": 40}}
    if is_tls:
        settings |= {"server": server, **tls_upstream}
    bench = await start(**settings)
    client = await bench.connect(ssl=trust if is_tls else None)
    assert (await client.ask(post())).status == 200
    (accepted,) = bench.gateway.listener._connections
    (opened,) = bench.gateway.replica_watch.replicas["default-0"]._idle
    assert options(accepted.transport) == [True, 40, 10, 4]
    assert options(opened.transport) == [True, 40, 10, 4]
