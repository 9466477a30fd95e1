"""The listening socket: accepts connections, watches their clocks, and drains them at the end."""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Final

from gateway.config.http_limits import HttpLimits
from gateway.server.auth.authenticator import Authenticator
from gateway.server.auth.client_address import TrustedProxies
from gateway.server.http.access_log import AccessLog, LoggedConnection
from gateway.server.http.body_limits import BufferBudget
from gateway.server.http.client_connection import ClientConnection, Handler
from gateway.server.http.listening import BACKLOG
from gateway.server.http.proxy_handshake import ProxyProtocolHandshake
from gateway.server.http.request_head import RequestHead
from gateway.server.http.tls_acceptor import TlsAcceptor
from gateway.server.runtime.memory import max_buffered_bytes
from gateway.server.runtime.tasks import check_each
from gateway.wire.known_head import KnownHeads

_SWEEP_PERIOD_S = 1.0
_MOST_STALLS = 3
# Connections beyond the bound that are read on while their refusal is under way; others close at once.
_MAX_REFUSED: Final = 16


class Listener:
    """Serves `handler` on one address. Start it with `open`, end it with `drain` and then `close`."""

    def __init__(
        self,
        handler: Handler,
        authenticator: Authenticator,
        limits: HttpLimits,
        *,
        proxies: TrustedProxies | None = None,
        access_log: AccessLog | None = None,
        now: Callable[[], float],
    ) -> None:
        """`proxies`: senders of PROXY protocol headers; None if there are none."""
        self.access_log = access_log
        self._connect: Callable[[], ClientConnection] = partial(ClientConnection, self)
        if access_log is not None:
            self._connect = partial(LoggedConnection, self, access_log)
        self._proxies = proxies
        # Connections whose header has not come yet.
        self._prefaces: set[ProxyProtocolHandshake] = set()
        self.handler = handler
        self.authenticator = authenticator
        self.limits = limits
        self.now = now
        self.budget = BufferBudget(max_buffered_bytes(limits))
        self.is_draining = self.is_closed = False
        self.loop = asyncio.get_running_loop()
        self.heads = KnownHeads[RequestHead]()
        self._connections: set[ClientConnection] = set()
        # Those that were one too many, and read why.
        self._refused: set[ClientConnection] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.port = 0
        self._servers: list[asyncio.Server] = []
        self._tls: TlsAcceptor | None = None
        # By endpoint, status, and whether it has failed; those that were refused unread have no endpoint.
        self.requests: Counter[tuple[str, int, bool]] = Counter()
        # By reason.
        self.refusals: Counter[str] = Counter()

    def counted(self, endpoint: str, status: int, *, has_failed: bool = False) -> None:
        """Counts a response. `has_failed`: by a fault of ours or the replica's, under any status."""
        self.requests[endpoint, status, has_failed or status >= 500] += 1

    @property
    def connection_count(self) -> int:
        handshakes = len(self._tls) if self._tls is not None else 0
        return len(self._connections) + len(self._refused) + len(self._prefaces) + handshakes

    async def open(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None) -> None:
        """`sockets` listen already, and belong to this from now on."""
        self.port = sockets[0].getsockname()[1]
        if tls is None:
            for listening in sockets:
                server = await self.loop.create_server(self._begin, sock=listening, backlog=BACKLOG)
                self._servers.append(server)
            return
        timeout_s = self.limits.head_timeout_s
        self._tls = TlsAcceptor(tls, self._connect, lambda: self._room > 0, handshake_s=timeout_s)
        self._tls.open(sockets)

    @property
    def _room(self) -> int:
        """Connections that there may be besides those that there are."""
        return self.limits.max_connections + len(self._refused) - self.connection_count

    def _begin(self) -> asyncio.Protocol:
        if self._proxies is None:
            return self._connect()
        may_begin = lambda: self._room > 0 or len(self._prefaces) < _MAX_REFUSED  # noqa: E731
        return ProxyProtocolHandshake(self._proxies, self._connect, self._prefaces, may_begin)

    def apply_config(self, limits: HttpLimits, tls: ssl.SSLContext | None) -> None:
        self.limits = limits
        self.budget.max_bytes = max_buffered_bytes(limits)
        if self._tls is not None and tls is not None:
            self._tls.apply_config(tls, handshake_s=limits.head_timeout_s)

    def leave(self) -> None:
        self.is_draining = True
        for server in self._servers:
            server.close()
        if self._tls is not None:
            self._tls.stop()

    async def drain(self, timeout_s: float) -> None:
        self.leave()
        if self._tls is not None:
            self._tls.close()
        for connection in tuple(self._connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_empty.wait()

    def close(self) -> None:
        self.leave()
        self.is_closed = True
        if self._tls is not None:
            self._tls.close()
        for connection in (*self._connections, *self._refused):
            connection.abort()
        for preface in tuple(self._prefaces):
            preface.abort()

    def forget_callers(self) -> None:
        self.heads = KnownHeads()
        for connection in tuple(self._connections):
            connection.forget_caller()

    def connected(self, connection: ClientConnection) -> bool:
        """False if the connection is one too many."""
        if self._tls is None and self._room <= 0:  # for a handshake there was room
            self._refused.add(connection)
            return False
        self._connections.add(connection)
        self._is_empty.clear()
        return True

    @property
    def may_linger(self) -> bool:
        return len(self._refused) <= _MAX_REFUSED

    def disconnected(self, connection: ClientConnection) -> None:
        self._refused.discard(connection)
        self._connections.discard(connection)
        if not self._connections:
            self._is_empty.set()

    async def watch(self) -> None:
        stalls = 0
        while True:
            began = self.now()
            await asyncio.sleep(_SWEEP_PERIOD_S)
            now = self.now()
            stalls = stalls + 1 if now - began > 2 * _SWEEP_PERIOD_S else 0
            if 0 < stalls <= _MOST_STALLS:  # we stood still: what came meanwhile is read first
                continue
            oldest_s = now - self.limits.head_timeout_s
            for late in [each for each in self._prefaces if each.began_s < oldest_s]:
                late.abort()
            check = methodcaller("check_timeouts", now)
            for connections in (self._connections, self._refused):
                check_each("client connection", connections, check, ClientConnection.abort)
