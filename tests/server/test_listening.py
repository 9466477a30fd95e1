"""Sockets that share a port."""

import contextlib
import socket

import pytest

from gateway.server.listening import listening_sockets


async def test_gateways_that_all_say_so_share_a_port():
    (first,) = await listening_sockets("127.0.0.1", 0, reuse_port=True)
    address = first.getsockname()
    with first, contextlib.ExitStack() as opened:
        with pytest.raises(OSError, match="in use"):
            await listening_sockets(*address)
        (second,) = await listening_sockets(*address, reuse_port=True)
        opened.enter_context(second)
        for _ in range(200):
            opened.enter_context(socket.create_connection(address))
        assert min(accepted(first), accepted(second)) > 50
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


async def test_a_port_that_is_taken_is_not_shared():
    (first,) = await listening_sockets("127.0.0.1", 0)
    with first, pytest.raises(OSError, match="in use"):
        await listening_sockets(*first.getsockname(), reuse_port=True)


def accepted(listening: socket.socket) -> int:
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listening.accept()[0].close()
            count += 1
    return count
