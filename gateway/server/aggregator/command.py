"""`turnpike control`: one control plane, and one dashboard, of several gateways.

It holds nothing. Keys and host names are checked by the gateways: what a caller sends is passed on to each.
"""

import argparse
import asyncio
import logging
import signal
from collections.abc import Sequence
from typing import Any, Final

import uvloop
from aiohttp import web

from gateway.config.addresses import check_url
from gateway.config.server import listen_of, split_listen
from gateway.server.aggregator.control_client import ControlClient
from gateway.server.aggregator.merged_api import AggregatedControl
from gateway.server.http.listening import binding, dashboard_url
from gateway.telemetry.log_lines import log_event

_LISTEN: Final = "127.0.0.1:8071"


def add_control(commands: Any) -> None:
    control = commands.add_parser("control", help="one dashboard of several gateways")
    control.add_argument(
        "gateways", nargs="+", metavar="URL", help="their control planes, such as http://gateway-a:8081"
    )
    control.add_argument(
        "--listen", default=_LISTEN, metavar="HOST:PORT", help=f"where to serve it (default {_LISTEN})"
    )
    control.set_defaults(command=_control)


def _control(arguments: argparse.Namespace) -> int:
    for url in arguments.gateways:
        check_url("URL", url)
    listen_of("--listen", arguments.listen)
    uvloop.run(_serve([url.rstrip("/") for url in arguments.gateways], arguments.listen))
    return 0


async def _serve(urls: Sequence[str], listen: str) -> None:
    """Until SIGTERM or SIGINT. Raises OSError if the address cannot be bound."""
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    gateways = [ControlClient(url, number=number) for number, url in enumerate(urls, 1)]
    control = AggregatedControl(gateways)
    # No compression is undone here: gateways get what was sent.
    runner = web.AppRunner(control.app(), access_log=None, handle_signals=False, auto_decompress=False)
    try:
        await runner.setup()
        with binding("--listen", listen):
            await web.TCPSite(runner, *split_listen(listen)).start()
        at = dashboard_url(listen, runner.addresses[0][1])
        log_event(logging.INFO, "listening", f"the dashboard of {len(urls)} gateways is at {at}", url=at)
        await over.wait()
    finally:
        control.close()
        await runner.cleanup()
        for each in gateways:
            await each.close()
