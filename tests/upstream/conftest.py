import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What the gateway itself runs on."""
    return {"uvloop": uvloop.new_event_loop}
