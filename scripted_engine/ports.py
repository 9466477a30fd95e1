"""Ports for servers that must know theirs before they listen.

The kernel hands out ports of the ephemeral range (from 32768 on Linux) to every outgoing connection: one that
was free a moment ago may be taken when its server starts. These are from below it.
"""

import random
import socket
from typing import Final

_CANDIDATES: Final = range(12_000, 32_000)
_random: Final = random.SystemRandom()


def free_port(host: str = "127.0.0.1") -> int:
    while True:
        port = _random.choice(_CANDIDATES)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        return port
