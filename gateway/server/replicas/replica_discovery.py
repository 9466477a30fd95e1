"""Discovery: which replicas do a file and DNS name?

A list that cannot be read, or does not resolve, changes nothing: the last one stays. So no outage of a name
server takes the fleet down.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection
from pathlib import Path

from gateway.config.upstream import DiscoveryConfig, PoolConfig
from gateway.domain.ids import PoolId
from gateway.telemetry.log_lines import ChangeLog
from gateway.upstream.replica import Address

# Of a pool, a list's name, and its URLs.
OnList = Callable[[PoolId, str, Collection[str]], None]


class Discovery:
    """Reads the lists of one pool."""

    def __init__(self, pool: PoolConfig, config: DiscoveryConfig, on_list: OnList) -> None:
        self._pool = PoolId(pool.name)
        self._config = config
        self._on_list = on_list
        # Logged once each, until they change.
        self._complaints: dict[str, str] = {}
        self._log = ChangeLog()

    async def run(self) -> None:
        while True:
            if self._config.file is not None:
                await self._look("file", self._read_file)
            if self._config.dns is not None:
                await self._look("dns", self._resolve)
            await asyncio.sleep(self._config.period_s)

    async def _look(self, origin: str, read: Callable[[], list[str]]) -> None:
        try:
            urls = await asyncio.to_thread(read)
        except (OSError, ValueError) as error:
            if self._complaints.get(origin) != str(error):
                self._complaints[origin] = str(error)
                fields = {"pool": self._pool, "origin": origin, "cause": error}
                self._log.log(origin, logging.WARNING, "discovery_failed", **fields)
            return
        self._complaints.pop(origin, None)
        self._on_list(self._pool, origin, urls)

    def _read_file(self) -> list[str]:
        """One URL a line; what follows a # is a remark. Raises ValueError for a line that is none."""
        assert self._config.file is not None
        lines = Path(self._config.file).read_text(encoding="utf-8").splitlines()
        urls = [url for line in lines if (url := line.split("#", 1)[0].strip())]
        return [Address.of_backend(url).url for url in urls]

    def _resolve(self) -> list[str]:
        assert self._config.dns is not None
        scheme, name, port = self._config.address()
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        hosts = sorted({str(address[0]) for *_, address in found})
        return [
            f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}" for host in hosts
        ]
