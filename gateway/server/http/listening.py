"""Binds listening sockets."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Final

from gateway.config import Config
from gateway.config.server import ServerConfig

BACKLOG: Final = 4096
_BIND_FAULTS: Final = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, socket.EAI_NONAME)


@contextlib.contextmanager
def binding(setting: str, listen: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _BIND_FAULTS:
            raise
        is_taken = error.errno == errno.EADDRINUSE
        why = "address already in use; name another port" if is_taken else error.strerror
        raise OSError(f"{setting}: {listen}: {why}") from None


async def listening_sockets(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """One for each address of the host. Raises OSError if one cannot be bound. `reuse_port`: processes of the
    same user share the port; the system distributes new connections."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with contextlib.ExitStack() as opened:
        sockets = []
        for family, address in dict.fromkeys((family, address) for family, *_, address in found):
            listening = opened.enter_context(
                socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=reuse_port)
            )
            listening.setblocking(False)
            sockets.append(listening)
        opened.pop_all()
    return sockets


def listening_on(config: Config, port: int, control_port: int, is_picker: bool = False) -> str:
    if is_picker:
        at = f"picking for Envoy on {config.picker.listen.rpartition(':')[0]}:{port}"
    else:
        at = f"listening on {agents_url(config.server, port)}"
    return f"{at}, control on port {control_port}"


def agents_url(server: ServerConfig, port: int) -> str:
    scheme = "https" if server.tls_certificate else "http"
    return f"{scheme}://{server.listen.rpartition(':')[0]}:{port}"


def dashboard_url(listen: str, port: int) -> str:
    host = listen.rpartition(":")[0]
    own = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104
    return f"http://{own.get(host, host)}:{port}/turnpike/"
