"""Listening sockets: bound here, served by whoever gets them; and what the log says of them."""

import asyncio
import contextlib
import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import Final

from gateway.config import Config
from gateway.config.server import split_listen

BACKLOG: Final = 4096
_SO_ATTACH_REUSEPORT_CBPF: Final = 51
"""Linux; `socket` has no name for it."""
_LOAD_RANDOM: Final = (0x20, 0, 0, 0xFFFFF000 + 56)
"""BPF: the accumulator becomes a random number (linux/filter.h, `SKF_AD_RANDOM`)."""
_MODULO: Final = 0x94
_JUMP_IF_EQUAL: Final = 0x15
_RETURN: Final = 0x06


async def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """One for each address that the host has. Raises OSError if one cannot be bound."""
    found = await _addresses(host, port)
    with contextlib.ExitStack() as opened:
        sockets = []
        for family, address in found:
            listening = opened.enter_context(socket.create_server(address, family=family, backlog=BACKLOG))
            listening.setblocking(False)
            sockets.append(listening)
        opened.pop_all()
    return sockets


async def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return list(dict.fromkeys((family, address) for family, *_, address in found))


class SharedPort:
    """Sockets that listen on the same addresses, some for each slot; the system deals connections out.

    They stay open as long as this process runs: a connection that waits in the queue of one is lost when the
    last process closes it. So a slot's socket goes from one worker to the next.
    """

    def __init__(self) -> None:
        self._slots: list[list[socket.socket]] = []

    async def open(self, host: str, port: int, *, slots: int) -> None:
        """Raises OSError if an address cannot be bound, or somebody else listens there."""
        # Bound without SO_REUSEPORT first: with it, another gateway's port would be shared silently.
        probes = await listening_sockets(host, port)
        try:
            addresses = [(each.family, each.getsockname()) for each in probes]
        finally:
            for probe in probes:
                probe.close()
        for _ in range(slots):
            self._slots.append([])
            for family, address in addresses:
                shared = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=True)
                shared.setblocking(False)
                self._slots[-1].append(shared)

    @property
    def port(self) -> int:
        port: int = self._slots[0][0].getsockname()[1]
        return port

    def of(self, slot: int) -> list[socket.socket]:
        return self._slots[slot]

    def steer(self, slots: Sequence[int]) -> None:
        """New connections go to these slots alone, to all if there are none; without effect on systems that
        cannot do that."""
        program = _choose_one_of(slots or range(len(self._slots)))
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
        option = struct.pack("HP", len(program), ctypes.addressof(code))
        for shared in self._slots[0]:
            with contextlib.suppress(OSError):
                shared.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, option)

    def close(self) -> None:
        for slot in self._slots:
            for shared in slot:
                shared.close()


def _choose_one_of(slots: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """A program of classic BPF that returns one of these numbers, each as often.

    The system numbers sockets in the order in which they began to listen, as long as none is closed.
    """
    program = [_LOAD_RANDOM, (_MODULO, 0, 0, len(slots))]
    for number, slot in enumerate(slots):
        program += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, slot)]
    return [*program, (_RETURN, 0, 0, slots[0])]


def listening_on(config: Config, port: int, control_port: int, is_picker: bool = False) -> str:
    """For the log: where the gateway can be reached."""
    if is_picker:
        host, _ = split_listen(config.picker.listen)
        return f"picking for Envoy on {host}:{port}, control on port {control_port}"
    host, _ = split_listen(config.server.listen)
    scheme = "https" if config.server.tls_certificate else "http"
    return f"listening on {scheme}://{host}:{port}, control on port {control_port}"
