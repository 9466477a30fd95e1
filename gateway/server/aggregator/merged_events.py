"""The information streams of several gateways as one, for one reader.

Each gateway numbers its own records. An id of the merged stream has the reader's position at each gateway, so
nothing is kept here: behind `1-120.2-88`, the next of the first gateway is its record 121, of the second its
record 89. A record is new to a reader if one of its id's numbers is above the reader's. What a reader does
not read, its gateways keep, and report as a gap; so does a gateway that began anew.
"""

import asyncio
import contextlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import ClientResponse, web

from gateway.server.admin.events import has_left
from gateway.server.aggregator.control_client import UNREACHABLE, ControlClient
from gateway.server.runtime.tasks import TaskGroup

# Between the end of a gateway's stream and the next attempt.
_AGAIN_S: Final = 0.2
_STUCK_S: Final = 60.0
_ID_LINE: Final = re.compile(rb"(?m)^id: (\d+)$")
_AFTER: Final = re.compile(r"\d{1,9}-\d{1,18}(\.\d{1,9}-\d{1,18}){0,999}")
_END: Final = b"\n\n"
_MAX_BLOCKS: Final = 16 << 20


class Positions(msgspec.Struct):
    """Of a reader: the last record's number, by gateway."""

    of: dict[int, int] = {}

    @classmethod
    def parse(cls, text: str) -> "Positions":
        """Raises ValueError."""
        if not text.isascii() or _AFTER.fullmatch(text) is None:
            raise ValueError("after: 0, or an id of this stream is expected")
        return cls({int(gateway): int(n) for gateway, n in (part.split("-") for part in text.split("."))})

    def __str__(self) -> str:
        return ".".join(f"{gateway}-{number}" for gateway, number in sorted(self.of.items()))

    def renumbered(self, gateway: int, blocks: bytes) -> bytes:

        def merged_id(line: re.Match[bytes]) -> bytes:
            self.of[gateway] = int(line[1])
            return b"id: %s" % str(self).encode()

        return _ID_LINE.sub(merged_id, blocks)


async def serve_events(
    request: web.Request, gateways: Sequence[ControlClient], is_closed: asyncio.Event
) -> web.StreamResponse:
    after = request.headers.get("Last-Event-ID") or request.query.get("after")
    try:
        positions = Positions.parse(after) if after not in (None, "0") else Positions()
    except ValueError as error:
        return web.json_response({"error": str(error)}, status=400)
    return await _Reader(request, positions, sends_old=after is not None).serve(gateways, is_closed)


class _Reader:
    def __init__(self, request: web.Request, positions: Positions, *, sends_old: bool) -> None:
        """`sends_old`: also what was there before it came, of gateways without a position."""
        self._request = request
        self._positions = positions
        self._first = 0 if sends_old else None
        self._response = web.StreamResponse()
        self._is_writing = asyncio.Lock()
        self._tasks = TaskGroup()

    async def serve(self, gateways: Sequence[ControlClient], is_closed: asyncio.Event) -> web.StreamResponse:
        refused = await self._begin(gateways)
        if refused is not None:
            return refused
        for gateway in gateways:
            self._tasks.spawn(self._follow(gateway))
        try:
            while not is_closed.is_set() and not has_left(self._request):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN_S):
                        await is_closed.wait()
        finally:
            await self._tasks.cancel()
        return self._response

    async def _begin(self, gateways: Sequence[ControlClient]) -> web.StreamResponse | None:
        for gateway in gateways:
            with contextlib.suppress(*UNREACHABLE):
                async with self._open(gateway) as response:
                    if response.status != 200:
                        return web.Response(
                            status=response.status,
                            body=await response.read(),
                            content_type="application/json",
                        )
                    for name in ("Content-Type", "Cache-Control", "X-Accel-Buffering"):
                        self._response.headers[name] = response.headers[name]
                    await self._response.prepare(self._request)
                    return None
        return web.json_response({"error": "no gateway answers"}, status=503)

    def _open(self, gateway: ControlClient) -> contextlib.AbstractAsyncContextManager[ClientResponse]:
        query = {name: value for name, value in self._request.query.items() if name != "after"}
        headers = {
            name: value for name, value in self._request.headers.items() if name.lower() != "last-event-id"
        }
        position = self._positions.of.get(gateway.number, self._first)
        if position is not None:
            headers["Last-Event-ID"] = str(position)
        path = str(self._request.rel_url.with_query(query))
        return gateway.request("GET", path, headers, timeout_s=None)

    async def _follow(self, gateway: ControlClient) -> None:
        while True:
            with contextlib.suppress(*UNREACHABLE):
                async with self._open(gateway) as response:
                    if response.status == 200:
                        rest = b""
                        async for data in response.content.iter_any():
                            whole, end, rest = (rest + data).rpartition(_END)
                            if len(rest) > _MAX_BLOCKS:
                                break
                            await self._write(self._positions.renumbered(gateway.number, whole + end))
            await asyncio.sleep(_AGAIN_S)

    async def _write(self, data: bytes) -> None:
        try:
            async with self._is_writing, asyncio.timeout(_STUCK_S):
                await self._response.write(data)
        except (ConnectionError, TimeoutError):
            if self._request.transport is not None:
                self._request.transport.abort()
