"""How a gateway ends: signals, the lame-duck phase, the drain.

SIGTERM: lame duck, then drain, then the end. SIGINT, which a person sends, begins with the drain. Each
further signal goes on to the next step.
"""

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING

from gateway.config.server import ServerConfig
from gateway.core import events as ev
from gateway.server.cluster.peers import Peers
from gateway.server.http.listener import Listener
from gateway.server.mcp.proxy import McpProxy
from gateway.server.proxy.driver import Driver
from gateway.server.runtime.tasks import TaskGroup
from gateway.telemetry.log_lines import log_event

if TYPE_CHECKING:
    from gateway.server.picker.service import PickerServer


class GracefulShutdown:
    def __init__(
        self,
        config: ServerConfig,
        driver: Driver,
        listener: Listener,
        *,
        peers: Peers | None,
        mcp: McpProxy | None,
        picker: "PickerServer | None",
    ) -> None:
        self.apply_config(config)
        self._driver = driver
        self._listener = listener
        self._peers = peers
        self._mcp = mcp
        self._picker = picker
        # It is not ready any more, though it may serve.
        self.is_retiring = False
        self._begun = asyncio.Event()
        # Set by a signal that ends the lame-duck phase.
        self._hurry = asyncio.Event()
        self._over = asyncio.Event()

    def apply_config(self, config: ServerConfig) -> None:
        self._shutdown_delay_s, self._drain_s = config.shutdown_delay_s, config.drain_s

    def catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.signalled, number)

    def signalled(self, number: signal.Signals) -> None:
        if self._listener.is_draining:
            self._over.set()
        elif self._begun.is_set() or number == signal.SIGINT:
            self._hurry.set()
        self._begun.set()

    async def wait(self, tasks: TaskGroup) -> None:
        await self._begun.wait()
        leaving = tasks.spawn(self._leave())
        ended = tasks.spawn(self._over.wait())
        await asyncio.wait((leaving, ended), return_when=asyncio.FIRST_COMPLETED)

    async def _leave(self) -> None:
        if self._shutdown_delay_s and not self._hurry.is_set():
            message = f"not ready any more; serving for another {self._shutdown_delay_s:g} s"
            log_event(logging.INFO, "not_ready", message, shutdown_delay_s=self._shutdown_delay_s)
            await self.retire()
        message = "draining; signal again to stop at once"
        log_event(logging.INFO, "drain", message, drain_s=self._drain_s)
        await self.drain()

    async def retire(self) -> None:
        self.is_retiring = True
        if self._picker is not None:
            self._picker.retire()
        if self._peers is not None:
            await self._peers.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._shutdown_delay_s):
                await self._hurry.wait()

    async def drain(self) -> None:
        self.is_retiring = True
        if self._peers is not None:
            await self._peers.leave()
        self._driver.send(ev.DrainStarted())
        if self._mcp is not None:
            self._mcp.drain()
        if self._picker is not None:
            await self._picker.stop(self._drain_s)
        listeners = [self._listener, *([self._peers.listener] if self._peers is not None else [])]
        await asyncio.gather(*(each.drain(self._drain_s) for each in listeners))
        if left := sum(each.connection_count for each in listeners):
            message = f"{left} connections are cut off at the end of the drain"
            log_event(logging.WARNING, "drain_cut", message, connections=left)
