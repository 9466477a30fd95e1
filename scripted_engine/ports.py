"""Ports for servers that must know theirs before they listen.

The kernel hands out ports of the ephemeral range (from 32768 on Linux) to every outgoing connection: one that
was free a moment ago may be taken when its server starts. These are from below it.
"""

import contextlib
import random
import socket
from typing import Final

_CANDIDATES: Final = range(12_000, 32_000)
_random: Final = random.SystemRandom()


def free_port(host: str = "127.0.0.1", *, in_a_row: int = 1) -> int:
    """The first of so many."""
    while True:
        first = _random.choice(_CANDIDATES)
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for port in range(first, first + in_a_row):
                probes.enter_context(socket.socket()).bind((host, port))
            return first
