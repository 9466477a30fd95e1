"""Listening sockets: bound here, served by whoever gets them; and what the log says of them."""

import asyncio
import contextlib
import socket
from typing import Final

from gateway.config import Config
from gateway.config.server import split_listen

BACKLOG: Final = 4096


async def listening_sockets(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """One for each address that the host has. Raises OSError if one cannot be bound. `reuse_port`: others of
    this user that say so, too, may listen there; the system deals new connections out."""
    found = await _addresses(host, port)
    with contextlib.ExitStack() as opened:
        sockets = []
        for family, address in found:
            listening = opened.enter_context(
                socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=reuse_port)
            )
            listening.setblocking(False)
            sockets.append(listening)
        opened.pop_all()
    return sockets


async def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return list(dict.fromkeys((family, address) for family, *_, address in found))


def listening_on(config: Config, port: int, control_port: int, is_picker: bool = False) -> str:
    if is_picker:
        host, _ = split_listen(config.picker.listen)
        return f"picking for Envoy on {host}:{port}, control on port {control_port}"
    host, _ = split_listen(config.server.listen)
    scheme = "https" if config.server.tls_certificate else "http"
    return f"listening on {scheme}://{host}:{port}, control on port {control_port}"
