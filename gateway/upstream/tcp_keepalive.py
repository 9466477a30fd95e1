"""TCP keepalive: a peer that is gone without a word (a NAT that forgot, a host that died) is found out.

Not TCP_USER_TIMEOUT, which would also cut a client that is there and does not read for a while.
"""

import asyncio
import socket
from typing import Final

_PROBES: Final = 4


def keep_alive(transport: asyncio.Transport, *, idle_s: int) -> None:
    """After `idle_s` of silence four probes follow within the same time again; then the peer is given up."""
    found = transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, idle_s // _PROBES)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
