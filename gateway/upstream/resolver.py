"""The addresses behind a replica's name. DNS's last answer is used at once, and refreshed in the background.

uvloop resolves names on libuv's threads, of which two at most do so at a time: a name that takes long to be
resolved keeps all others waiting. So only the first connection to a name, and one after its known addresses
have failed, waits for DNS; and a name has one look-up under way at most.
"""

import asyncio
import contextlib
import ipaddress
import socket
from typing import Final

from gateway.upstream.errors import lookup_error

# No new look-up for this long.
_FRESH_S: Final = 5.0


class Resolver:
    """Of one host. One event loop only."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._known: tuple[str, ...] = ()
        self._resolved_at = 0.0
        self._looking: asyncio.Task[None] | None = None
        try:
            ipaddress.ip_address(host)
        except ValueError:
            self._is_name = True
        else:
            self._is_name, self._known = False, (host,)

    async def addresses(self) -> tuple[str, ...]:
        """In DNS's order, at least one. Raises OSError if none was ever known."""
        if self._is_name and asyncio.get_running_loop().time() - self._resolved_at > _FRESH_S:
            looking = self._look()
            if not self._known:
                await _result_of(looking)
        return self._known

    async def others(self, failed: tuple[str, ...]) -> tuple[str, ...]:
        if self._is_name and asyncio.get_running_loop().time() - self._resolved_at > _FRESH_S:
            with contextlib.suppress(OSError):
                await _result_of(self._look())
        return tuple(address for address in self._known if address not in failed)

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def _look(self) -> "asyncio.Task[None]":
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._refresh())
            self._looking.add_done_callback(self._looked)
        return self._looking

    async def _refresh(self) -> None:
        self._known = await self._look_up()
        self._resolved_at = asyncio.get_running_loop().time()

    async def _look_up(self) -> tuple[str, ...]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise lookup_error(error) from error
        return tuple(dict.fromkeys(str(address[0]) for *_, address in found))

    def _looked(self, task: "asyncio.Task[None]") -> None:
        self._looking = None
        if not task.cancelled():
            task.exception()  # whoever waited has it; the others use what is known


async def _result_of(looking: "asyncio.Task[None]") -> None:
    """Raises OSError if it failed, or was given up. Whoever waits no longer does not end it for others."""
    await asyncio.wait([looking])
    if looking.cancelled():
        raise ConnectionAbortedError("it is no member any more")
    looking.result()
