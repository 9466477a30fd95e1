"""Sockets that share a port."""

import contextlib
import socket

import pytest

from gateway.server.listening import SharedPort, listening_sockets


def taken_by_slot(port: SharedPort, slots: int, count: int) -> list[int]:
    """How many of so many connections each slot's socket gets."""
    clients = [socket.create_connection(("127.0.0.1", port.port)) for _ in range(count)]
    taken = []
    for slot in range(slots):
        taken.append(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                port.of(slot)[0].accept()[0].close()
                taken[-1] += 1
    for client in clients:
        client.close()
    return taken


async def test_connections_go_where_they_are_steered():
    port = SharedPort()
    await port.open("127.0.0.1", 0, slots=3)
    try:
        port.steer([1])
        assert taken_by_slot(port, 3, 20) == [0, 20, 0]
        port.steer([0, 2])
        first, none, last = taken_by_slot(port, 3, 200)
        assert none == 0 and min(first, last) > 60
        port.steer([])
        assert min(taken_by_slot(port, 3, 300)) > 60
        number = port.port
    finally:
        port.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", number)).close()


async def test_a_port_that_is_taken_is_not_shared():
    port, other = SharedPort(), SharedPort()
    await port.open("127.0.0.1", 0, slots=2)
    try:
        with pytest.raises(OSError, match="in use"):
            await other.open("127.0.0.1", port.port, slots=2)
        with pytest.raises(OSError, match="in use"):
            await listening_sockets("127.0.0.1", port.port)
    finally:
        port.close()
