"""Accepts TLS connections, and leads each through its handshake.

`loop.create_server(ssl=...)` reports a connection only after its handshake. Connections that never finish
theirs would not count, and could use up all file descriptors.

Invariants: at most as many handshakes are under way as there is room for connections; beyond that a
connection is closed unanswered; each handshake ends within its time.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Final

from gateway.server.runtime.tasks import TaskGroup

# How long to wait after the system had no descriptor or no memory for a connection.
_AGAIN_S: Final = 0.2


class TlsAcceptor:
    def __init__(
        self,
        tls: ssl.SSLContext,
        connect: Callable[[], asyncio.Protocol],
        has_room: Callable[[], bool],
        *,
        handshake_s: float,
    ) -> None:
        """`connect`: makes the protocol of a connection whose handshake is over; `has_room`: for one more."""
        self._tls = tls
        self._connect = connect
        self._has_room = has_room
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._handshakes = TaskGroup()

    def __len__(self) -> int:
        return len(self._handshakes)

    def apply_config(self, tls: ssl.SSLContext, *, handshake_s: float) -> None:
        self._tls = tls
        self._handshake_s = handshake_s

    def open(self, sockets: Iterable[socket.socket]) -> None:
        for listening in sockets:
            self._sockets.append(listening)
            self._loop.add_reader(listening, self._accept, listening)

    def stop(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    def close(self) -> None:
        self.stop()
        self._handshakes.cancel_soon()

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, ConnectionError):
            return  # it left before it was accepted, or another process took it
        except OSError:
            self._loop.remove_reader(listening)
            self._loop.call_later(_AGAIN_S, self._accept_again, listening)
            return
        accepted.setblocking(False)
        if self._has_room():
            self._handshakes.spawn(self._greet(accepted))
        else:
            accepted.close()

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    async def _greet(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._connect, accepted, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
        except OSError:  # no TLS, a version or cipher that we refuse, or not in time (TimeoutError)
            accepted.close()
