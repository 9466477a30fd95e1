"""Connections whose other end is gone without a word are found out."""

import socket
import ssl
from typing import Any

import pytest
import trustme

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
async def test_both_sides_are_kept_alive(start, tmp_path, is_tls):
    settings: dict[str, Any] = {}
    how: dict[str, Any] = {}
    if is_tls:
        authority = trustme.CA()
        own = authority.issue_cert("localhost", "127.0.0.1")
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        own.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
        own.cert_chain_pems[0].write_to_path(str(tmp_path / "chain.pem"))
        backend_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        own.configure_cert(backend_tls)
        trust = ssl.create_default_context()
        authority.configure_trust(trust)
        how = {"ssl": trust}
        settings = {
            "backend_tls": backend_tls,
            "server": {"tls_certificate": str(tmp_path / "chain.pem"), "tls_key": str(tmp_path / "key.pem")},
            "upstream": {"ca_file": str(tmp_path / "ca.pem")},
        }
    settings["server"] = {**settings.get("server", {}), "limits": {"tcp_keepalive_s": 40}}
    bench = await start(**settings)
    client = await bench.connect(**how)
    assert (await client.ask(post())).status == 200
    (accepted,) = bench.gateway.listener._connections
    (opened,) = bench.gateway.replica_watch.replicas["default-0"]._idle
    assert options(accepted.transport) == [True, 40, 10, 4]
    assert options(opened.transport) == [True, 40, 10, 4]
