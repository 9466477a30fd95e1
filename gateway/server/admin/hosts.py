"""What probes beside tools report, on the control plane."""

from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from gateway.core import events as ev
from gateway.domain.engine import HostSignals

_MAX_BYTES: Final = 4096
_MAX_NAME: Final = 256


class Hosts:
    def __init__(self, send: Callable[[ev.Event], None]) -> None:
        self._send = send

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/turnpike/hosts/{name}", self._report)]

    async def _report(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        body = await request.content.read(_MAX_BYTES + 1)
        try:
            if len(body) > _MAX_BYTES or len(name) > _MAX_NAME:
                raise ValueError("too long")
            signals = msgspec.json.decode(body, type=HostSignals)
        except ValueError as error:
            return web.json_response({"error": f"no report of a host: {error}"}, status=400)
        self._send(ev.HostReported(name, signals))
        return web.Response(status=204)
