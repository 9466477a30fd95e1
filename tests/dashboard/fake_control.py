"""A control listener without a gateway: it serves the page, and whatever records it is given to publish."""

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from gateway.dashboard.explain import Explainer
from gateway.domain.ids import ReplicaId, RequestId
from gateway.domain.records import Record
from gateway.history.answers import Answers
from gateway.server.admin.api import get_reasons

STATIC = Path(__file__).parents[2] / "gateway" / "dashboard" / "static"
BATCH_S = 0.2


class FakeControl:
    """Snapshots have no sessions and the number 0, so the page reads everything that was ever published."""

    def __init__(self, *, key: str | None = None) -> None:
        self.key = key
        self.is_of_several = False
        """Ids are those of two gateways' stream, of which the first has all records."""
        self.is_page_closed = False
        """The page, too, is for those alone who have the key; so the browser asks for it."""
        self.url = ""
        self.lines: list[bytes] = []
        self.gauges: dict[str, object] = {}
        self.snapshot: dict[str, object] | None = None
        self.records: list[Record] = []
        self.loads: dict[ReplicaId, int] = {}
        self.graphs: list[object] = []
        self.history: Answers | None = None
        """A real one, for whoever asks for what is over."""
        self.asked: list[str] = []
        self.after: list[int] = []
        """Where streams were asked to begin."""
        self.is_down = False
        self._streams: set[asyncio.Task[Any]] = set()

    def publish(self, records: Iterable[Record | dict[str, object]]) -> None:
        """A dict is sent as it is, hostile or not."""
        for record in records:
            if not isinstance(record, dict):
                self.records.append(record)
            body = msgspec.json.encode(record)
            kind = json.loads(body)["type"]
            at = self.id(len(self.lines) + 1)
            self.lines.append(f"id: {at}\nevent: {kind}\ndata: {body.decode()}\n\n".encode())

    def id(self, number: int) -> int | str:
        return f"1-{number}.2-7" if self.is_of_several else number

    def publish_gap(self) -> None:
        number = len(self.lines) + 1
        data = json.dumps({"from": number, "to": number})
        self.lines.append(f"id: {self.id(number)}\nevent: gap\ndata: {data}\n\n".encode())

    def cut(self) -> None:
        for task in self._streams:
            task.cancel()

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator["FakeControl"]:
        app = web.Application(middlewares=[self._check])
        app.add_routes(
            [
                web.get("/turnpike/", self._page),
                web.get("/turnpike/static/reasons.js", get_reasons),
                web.get("/turnpike/snapshot", self._snapshot),
                web.get("/turnpike/events", self._events),
                web.get("/turnpike/turns/{id}", self._turn),
                web.get("/turnpike/graphs", self._graphs),
                web.get("/turnpike/sessions/{id}", self._session),
                web.get("/turnpike/history", self._look_back),
                web.static("/turnpike/static/", STATIC),
            ]
        )
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/turnpike/"
        try:
            yield self
        finally:
            self.cut()
            await runner.cleanup()

    @web.middleware
    async def _check(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(request.path_qs)
        is_data = request.path != "/turnpike/" and not request.path.startswith("/turnpike/static/")
        is_asked = is_data or self.is_page_closed
        if is_data and self.is_down:
            assert request.transport is not None
            request.transport.abort()
            raise asyncio.CancelledError
        password = b64encode(f"any:{self.key}".encode()).decode()
        accepted = (f"Bearer {self.key}", f"Basic {password}")
        if is_asked and self.key is not None and request.headers.get("Authorization") not in accepted:
            headers = {"WWW-Authenticate": 'Basic realm="turnpike"'}
            return web.json_response({"error": "a control key is required"}, status=401, headers=headers)
        return await handler(request)

    async def _page(self, _: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    async def _snapshot(self, request: web.Request) -> web.Response:
        """The first one knows nothing yet, as becomes the number 0."""
        told = {"at_s": time.time(), "seq": 0, "sessions": [], "session_count": 0}
        empty = {**told, **self.gauges} if "sessions" in request.query else told
        return web.json_response(self.snapshot if self.snapshot is not None else empty)

    async def _turn(self, request: web.Request) -> web.Response:
        explainer = Explainer(RequestId(request.match_info["id"]), self.loads)
        explainer.read(reversed(self.records))
        found = explainer.explanation()
        if found is None:
            return web.json_response({"error": "nothing is known of this request (any more)"}, status=404)
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def _session(self, request: web.Request) -> web.Response:
        return self._from_history(request, "session")

    async def _look_back(self, request: web.Request) -> web.Response:
        return self._from_history(request, "look")

    def _from_history(self, request: web.Request, question: str) -> web.Response:
        found = None
        if (history := self.history) is not None:
            asked = request.match_info.get("id"), request.query
            found = history.encoded(getattr(history, question), *asked)
        if found is None:
            return web.json_response({"error": "nothing is known of it (any more)"}, status=404)
        return web.Response(body=found, content_type="application/json")

    async def _graphs(self, _: web.Request) -> web.Response:
        return web.json_response(self.graphs)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID", str(len(self.lines)))
        at = int(last.removeprefix("1-").partition(".")[0])
        self.after.append(at)
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            await response.write(b": turnpike\n\n")
            while True:
                if at < len(self.lines):
                    some = self.lines[at : at + 1000]
                    at += len(some)
                    await response.write(b"".join(some))
                else:
                    await asyncio.sleep(BATCH_S)
        except (asyncio.CancelledError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
            return response
        finally:
            self._streams.discard(task)


def learned() -> list[object]:
    """Graphs in the form in which the gateway gives them."""
    edges = [
        {"from": -1, "to": 1, "probability": 0.94, "count": 60.0},
        {"from": 1, "to": 3, "probability": 1.0, "count": 157.0},
        {"from": 3, "to": 1, "probability": 0.4, "count": 40.0},
        {"from": 3, "to": 0, "probability": 0.6, "count": 60.0},
    ]
    labels = {-1: "START", 0: "END", 1: "edit", 3: "run_tests"}
    nodes = [
        {
            "id": number,
            "label": label,
            "visits": 64.0,
            "pause_p50_s": 12.0 if number == 3 else None,
            "pause_p95_s": 41.0 if number == 3 else None,
        }
        for number, label in labels.items()
    ]
    return [{"id": "9f86d081", "tasks": 64, "steps": 650, "is_known": True, "nodes": nodes, "edges": edges}]
