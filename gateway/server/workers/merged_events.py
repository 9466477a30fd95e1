"""The information streams of all workers as one, for one reader.

Each worker numbers its own records. An id of the merged stream says where its reader is with each worker, so
nothing is kept here: as `3-120.4-88`, the worker with serial 3 has sent 120, the one with serial 4 88. What a
reader does not read, its workers keep, and tell it of the gap.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiohttp import ClientResponse, web

from gateway.server.tasks import TaskGroup
from gateway.server.workers.control_line import UNREACHABLE, ControlLine

_LOOK_S: Final = 0.2
"""For workers that were started."""
_STUCK_S: Final = 60.0
_ID_LINE: Final = re.compile(rb"(?m)^id: (\d+)\n")
_AFTER: Final = re.compile(r"\d{1,9}-\d{1,18}(\.\d{1,9}-\d{1,18}){0,999}")
_END: Final = b"\n\n"
_MAX_BLOCKS: Final = 16 << 20
GAP: Final = b"event: gap\ndata: {}\n\n"
"""What a worker knew is gone with it."""


class Positions:
    """Where a reader is: the last record's number, by worker."""

    def __init__(self, of: Mapping[int, int] | None = None) -> None:
        self.of = dict(of or {})

    @classmethod
    def parse(cls, text: str) -> "Positions":
        """Raises ValueError."""
        if not text.isascii() or _AFTER.fullmatch(text) is None:
            raise ValueError("after: 0, or an id of this stream is expected")
        return cls({int(s): int(n) for s, n in (part.split("-") for part in text.split("."))})

    def __str__(self) -> str:
        return ".".join(f"{serial}-{number}" for serial, number in sorted(self.of.items()))


class MergedEvents:
    def __init__(self, workers: Callable[[], Sequence[ControlLine]], *, is_over: Callable[[], bool]) -> None:
        self._workers = workers
        self._is_over = is_over

    async def serve(self, request: web.Request) -> web.StreamResponse:
        asked = request.headers.get("Last-Event-ID") or request.query.get("after")
        try:
            positions = Positions.parse(asked) if asked not in (None, "0") else Positions()
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        reader = _Reader(request, positions, sends_old=asked is not None)
        return await reader.serve(self._workers, self._is_over)


class _Reader:
    def __init__(self, request: web.Request, positions: Positions, *, sends_old: bool) -> None:
        """`sends_old`: also what was there before it came."""
        self._request = request
        self._positions = positions
        self._sends_old = sends_old
        self._response = web.StreamResponse()
        self._is_writing = asyncio.Lock()
        self._tasks = TaskGroup()
        self._followed: set[int] = set()
        """Serials."""

    async def serve(
        self, workers: Callable[[], Sequence[ControlLine]], is_over: Callable[[], bool]
    ) -> web.StreamResponse:
        refused = await self._begin(workers())
        if refused is not None:
            return refused
        try:
            self._sends_old = True  # of workers that come later, all is new
            while not is_over() and not self._has_left():
                await asyncio.sleep(_LOOK_S)
                await self._tell_of_gaps(workers())
                self._follow_new(workers())
        finally:
            await self._tasks.cancel()
        return self._response

    async def _begin(self, workers: Sequence[ControlLine]) -> web.StreamResponse | None:
        """An answer of one worker's, if it is none that a reader is to have."""
        for worker in workers:
            with contextlib.suppress(*UNREACHABLE):
                async with self._open(worker, self._position(worker)) as response:
                    if response.status != 200:
                        return web.Response(
                            status=response.status,
                            body=await response.read(),
                            content_type="application/json",
                        )
                    for name in ("Content-Type", "Cache-Control", "X-Accel-Buffering"):
                        self._response.headers[name] = response.headers[name]
                    break
        else:
            return web.json_response({"error": "no worker answers"}, status=503)
        await self._response.prepare(self._request)
        self._follow_new(workers)
        return None

    def _position(self, worker: ControlLine) -> int | None:
        """Where to go on; 0 for the oldest that is kept, None for what comes next."""
        return self._positions.of.get(worker.serial, 0 if self._sends_old else None)

    def _open(
        self, worker: ControlLine, position: int | None
    ) -> contextlib.AbstractAsyncContextManager[ClientResponse]:
        query = {name: value for name, value in self._request.query.items() if name != "after"}
        headers = {
            name: value for name, value in self._request.headers.items() if name.lower() != "last-event-id"
        }
        if position is not None:
            headers["Last-Event-ID"] = str(position)
        path = str(self._request.rel_url.with_query(query))
        return worker.request("GET", path, headers, timeout_s=None)

    def _follow_new(self, workers: Sequence[ControlLine]) -> None:
        for worker in workers:
            if worker.serial not in self._followed:
                self._followed.add(worker.serial)
                self._tasks.spawn(self._follow(worker, self._position(worker)))

    async def _tell_of_gaps(self, workers: Sequence[ControlLine]) -> None:
        gone = self._positions.of.keys() - {worker.serial for worker in workers}
        for serial in gone:
            del self._positions.of[serial]
        if gone:
            await self._write(GAP)

    async def _follow(self, worker: ControlLine, position: int | None) -> None:
        with contextlib.suppress(*UNREACHABLE):
            async with self._open(worker, position) as response:
                if response.status == 200:
                    rest = b""
                    async for data in response.content.iter_any():
                        whole, end, rest = (rest + data).rpartition(_END)
                        if len(rest) > _MAX_BLOCKS:
                            break
                        await self._pass_on(worker, whole + end)
        await asyncio.sleep(_LOOK_S)
        self._followed.discard(worker.serial)

    async def _pass_on(self, worker: ControlLine, blocks: bytes) -> None:
        numbers = _ID_LINE.findall(blocks)
        if not numbers:
            await self._write(blocks)  # a comment, or nothing
            return
        self._positions.of[worker.serial] = int(numbers[-1])
        await self._write(b"%sid: %s\n\n" % (_ID_LINE.sub(b"", blocks), str(self._positions).encode()))

    async def _write(self, data: bytes) -> None:
        try:
            async with self._is_writing, asyncio.timeout(_STUCK_S):
                await self._response.write(data)
        except (ConnectionError, TimeoutError):
            if self._request.transport is not None:
                self._request.transport.abort()

    def _has_left(self) -> bool:
        transport = self._request.transport
        return transport is None or transport.is_closing()
