"""Accepts connections of clients that speak TLS, and leads each through its handshake.

`loop.create_server(ssl=...)` reports a connection only after its handshake. Connections that never finish
theirs would not count, and could use up all file descriptors.

Invariants: at most as many handshakes are under way as there is room for connections; beyond that a
connection is closed unanswered; each handshake ends within its time.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from gateway.server.tasks import TaskGroup

_AGAIN_S: Final = 0.2
"""How long to wait after the system had no descriptor or no memory for a connection."""


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
        self._accepting = TaskGroup()
        self._handshakes = TaskGroup()

    def __len__(self) -> int:
        """How many handshakes are under way."""
        return len(self._handshakes)

    @property
    def port(self) -> int:
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def open(self, host: str, port: int, *, backlog: int) -> None:
        """Raises OSError if the address cannot be bound."""
        found = await self._loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, *_, address in dict.fromkeys(found):
                listening = socket.create_server(address, family=family, backlog=backlog)
                listening.setblocking(False)
                self._sockets.append(listening)
        except OSError:
            self.close()
            raise
        for listening in self._sockets:
            self._accepting.supervise("accept", partial(self._accept, listening), of=str(listening.fileno()))

    def close(self) -> None:
        """Accepts nothing more, and gives up on the handshakes that are under way."""
        self._accepting.cancel_soon()
        self._handshakes.cancel_soon()
        for listening in self._sockets:
            self._loop.call_soon(listening.close)  # when nobody waits for it any more
        self._sockets.clear()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listening)
            except ConnectionError:
                continue  # it left before it was accepted
            except OSError:
                await asyncio.sleep(_AGAIN_S)
                continue
            if self._has_room():
                self._handshakes.spawn(self._greet(accepted))
            else:
                accepted.close()

    async def _greet(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._connect, accepted, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
        except OSError:  # no TLS, a version or cipher that we refuse, or not in time (TimeoutError)
            accepted.close()
