"""`turnpike control`: one control plane, and one dashboard, of gateways on several machines.

It holds nothing. Keys and host names are checked by the gateways: what a caller sends is passed on to each.
"""

import argparse
import asyncio
import logging
import signal
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import uvloop
from aiohttp import web

from gateway.config.server import split_listen
from gateway.server.workers.control import MergedControl
from gateway.server.workers.control_line import ControlLine
from gateway.server.workers.merged_metrics import Totals

_log: Final = logging.getLogger(__name__)
_LISTEN: Final = "127.0.0.1:8090"


def add_control(commands: Any) -> None:
    """The `control` command, below the `turnpike` command's."""
    control = commands.add_parser("control", help="one dashboard of several gateways")
    control.add_argument(
        "gateways", nargs="+", metavar="URL", help="their control planes, such as http://gateway-a:8081"
    )
    control.add_argument(
        "--listen", default=_LISTEN, metavar="HOST:PORT", help=f"where to serve it (default {_LISTEN})"
    )
    control.set_defaults(command=_control)


class Gateways:
    """As `MergedControl` wants them. Those that do not answer are left out of what is told."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.running = self.serving = [
            ControlLine(url, aiohttp.TCPConnector(limit=0), number=number, serial=number)
            for number, url in enumerate(urls, 1)
        ]
        self.wanted = len(urls)
        self.missing_s = 0.0
        self.restarts = 0
        self.gone = Totals()
        self.is_ending = False

    async def close(self) -> None:
        for line in self.running:
            await line.close()


def _control(arguments: argparse.Namespace) -> int:
    for url in arguments.gateways:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise ValueError(f"a control plane is a URL, not {url!r}")
    host, port = split_listen(arguments.listen)
    uvloop.run(_serve([url.rstrip("/") for url in arguments.gateways], host, port))
    return 0


async def _serve(urls: Sequence[str], host: str, port: int) -> None:
    """Until SIGTERM or SIGINT. Raises OSError if the address cannot be bound."""
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    gateways = Gateways(urls)
    control = MergedControl(gateways, noun="gateway", has_metrics=False)
    # No compression is undone here: gateways get what was sent.
    runner = web.AppRunner(control.app(), access_log=None, handle_signals=False, auto_decompress=False)
    try:
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        at = f"http://{host}:{runner.addresses[0][1]}/turnpike/"
        _log.info("the dashboard of %d gateways is at %s", len(urls), at)
        await over.wait()
    finally:
        gateways.is_ending = True
        await runner.cleanup()
        await gateways.close()
