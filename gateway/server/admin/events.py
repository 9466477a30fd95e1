"""`GET /turnpike/events`: the information stream, live, as server-sent events.

Readers are served in ticks; `telemetry/frames.py` decides what each gets. Without a reader there is no tick,
and nothing is encoded. A reader's socket is never written to while it is full; a gap then stands for what it
misses.

Records are numbered from 1 in each incarnation of a gateway, which the response names. A reader that resumes
and names another incarnation gets all that this one still has.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Final

from aiohttp import web

from gateway.domain.ids import SessionId
from gateway.server.runtime.tasks import TaskGroup
from gateway.telemetry.frames import Filter, Frames
from gateway.telemetry.ring import Ring

TICK_S: Final = 0.2
_HEARTBEAT_TICKS: Final = 75
# A reader that takes nothing for so long is cut off.
_STUCK_S: Final = 60.0
# For the records that a reader has not got when the gateway ends.
_LAST_S: Final = 2.0
_MAX_READERS: Final = 256
INCARNATION: Final = "x-turnpike-incarnation"
_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


class Events:
    """The readers of one ring. `close` ends them."""

    def __init__(self, ring: Ring, tasks: TaskGroup) -> None:
        self.frames = Frames(ring)
        self._tasks = tasks
        self._readers = 0
        self._ticked = asyncio.Event()
        self._is_ticking = False
        self._is_closed = False
        self._incarnation = secrets.token_hex(8)

    def close(self) -> None:
        self._is_closed = True
        self._wake()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        try:
            after, wanted = _wishes(request)
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        if self._readers >= _MAX_READERS:
            return web.json_response({"error": "too many readers"}, status=503, headers={"Retry-After": "5"})
        if request.query.get("incarnation", self._incarnation) != self._incarnation:
            after = 0
        response = web.StreamResponse(headers={**_HEADERS, INCARNATION: self._incarnation})
        await response.prepare(request)
        self._readers += 1
        if not self._is_ticking:
            self._is_ticking = True
            self._tasks.supervise("event readers", self._tick)
        try:
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self._feed(response, after, wanted, lambda: has_left(request))
        finally:
            self._readers -= 1
        return response

    async def _feed(
        self, response: web.StreamResponse, after: int | None, wanted: Filter, has_left: Callable[[], bool]
    ) -> None:
        reader = self.frames.open(after, wanted)
        await response.write(b": turnpike\n\n")
        silent = 0
        while not self._is_closed and not has_left():
            data = self.frames.read(reader)
            silent += 1
            if data or silent > _HEARTBEAT_TICKS:
                async with asyncio.timeout(_STUCK_S):
                    await response.write(data or b": \n\n")
                silent = 0
            await self._ticked.wait()
        async with asyncio.timeout(_LAST_S):
            while reader.position < self.frames.ring.last and not has_left():
                self.frames.begin_tick(1)
                await response.write(self.frames.read(reader))

    async def _tick(self) -> None:
        while self._readers and not self._is_closed:
            await asyncio.sleep(TICK_S)
            self.frames.begin_tick(self._readers)
            self._wake()
        self._is_ticking = False

    def _wake(self) -> None:
        self._ticked.set()
        self._ticked.clear()


def _wishes(request: web.Request) -> tuple[int | None, Filter]:
    number = request.headers.get("Last-Event-ID") or request.query.get("after")
    if number is not None and not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise ValueError("after: the number of a record is expected")
    types, session = request.query.get("types"), request.query.get("session")
    wanted = Filter(
        types=frozenset(types.split(",")) if types else None,
        session=SessionId(session) if session else None,
    )
    return None if number is None else int(number), wanted


def has_left(request: web.Request) -> bool:
    transport = request.transport
    return transport is None or transport.is_closing()
