"""Connections that begin with a header of the PROXY protocol: it is read, and the rest is the client's."""

import asyncio
from collections.abc import Callable
from typing import cast

from gateway.server.auth.client_address import TrustedProxies
from gateway.server.http.client_connection import ClientConnection
from gateway.wire.proxy_protocol import ProxyProtocolError, read_proxy_header


class ProxyProtocolHandshake(asyncio.Protocol):
    """Reads the header, then hands the transport over to a ClientConnection. Whatever is wrong ends it."""

    transport: asyncio.Transport

    def __init__(
        self,
        proxies: TrustedProxies,
        connect: Callable[[], ClientConnection],
        open_prefaces: "set[ProxyProtocolHandshake]",
        has_room: Callable[[], bool],
    ) -> None:
        self._proxies = proxies
        self._connect = connect
        self._open = open_prefaces
        self._has_room = has_room
        self._data = b""
        self._peer = ""
        self.began_s = asyncio.get_running_loop().time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self._has_room():
            self.abort()
            return
        self._open.add(self)
        peername = transport.get_extra_info("peername")
        self._peer = peername[0] if isinstance(peername, tuple) else "local"
        if not self._proxies.is_trusted(self._peer):
            self.abort()

    def data_received(self, data: bytes) -> None:
        self._data += data
        try:
            header = read_proxy_header(self._data)
        except ProxyProtocolError:
            self.abort()
            return
        if header is None or self.transport.is_closing():
            return
        self._open.discard(self)
        connection = self._connect()
        self.transport.set_protocol(connection)
        connection.connection_made(self.transport)
        connection.parser.peer = header.client or self._peer
        if rest := self._data[header.size :]:
            connection.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)

    def abort(self) -> None:
        self.transport.abort()
