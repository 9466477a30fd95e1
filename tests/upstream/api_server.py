"""An API server of Kubernetes, as far as EndpointSlices of one namespace are listed and watched: pages,
chunked JSON lines, resource versions, bookmarks, 410. It does what a test tells it to do wrong."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web


def endpoint(address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions or {"ready": True, "serving": True}}


class ApiServer:
    def __init__(self) -> None:
        self.version = 1000
        self.slices: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[int, str]] = []
        """Resource version and line of all that changed."""
        self.oldest = 0
        self.token = "t-1"
        self.status = 0
        self.headers: dict[str, str] = {}
        self.page = 100
        self.lines: list[bytes] = []
        """To be sent to the watches that are open, as they are."""
        self.asked: list[dict[str, str]] = []
        self.is_silent = False
        """Requests are taken, and never answered."""
        self.watches = 0
        self._changed = asyncio.Event()
        self._cut = 0
        self._runner: web.AppRunner | None = None
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["ApiServer"]:
        await self.open()
        try:
            yield self
        finally:
            await self.close()

    async def open(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        assert self._runner is not None
        self.cut()
        await self._runner.cleanup()

    # --- what a test does ----------------------------------------------------------------------------

    def put(self, name: str, *endpoints: dict[str, Any], family: str = "IPv4", **more: Any) -> None:
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.version += 1
        self.slices[name] = {
            "metadata": {"name": name, "resourceVersion": str(self.version), "uid": "x"},
            "addressType": family,
            "endpoints": list(endpoints),
            "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
            **more,
        }
        self._tell(kind, self.slices[name])

    def delete(self, name: str) -> None:
        self.version += 1
        gone = self.slices.pop(name)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._tell("DELETED", gone)

    def bookmark(self) -> None:
        self.version += 10
        told = {"kind": "EndpointSlice", "metadata": {"resourceVersion": str(self.version)}}
        self._tell("BOOKMARK", told)

    def forget(self) -> None:
        self.oldest = self.version = self.version + 1
        self.events.clear()

    def send(self, line: bytes) -> None:
        self.lines.append(line)
        self._notify()

    def cut(self) -> None:
        self._cut += 1
        self._notify()

    def watch_count(self) -> int:
        return sum("watch" in asked for asked in self.asked)

    # --- what it answers -----------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        assert request.match_info["namespace"] == "models"
        assert request.query["labelSelector"] == "kubernetes.io/service-name=vllm"
        self.asked.append(dict(request.query))
        if self.is_silent:
            await asyncio.sleep(3600)
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if self.status:
            return _status(self.status, "as the test wants it", self.headers)
        return await self._watch(request) if request.query.get("watch") == "1" else self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        at, _, start = request.query.get("continue", f"{self.version}/0").partition("/")
        if int(at) < self.oldest:
            return _status(410, "The provided continue parameter is too old")
        begin, limit = int(start), min(self.page, int(request.query["limit"]))
        items = list(self.slices.values())
        rest = f"{at}/{begin + limit}" if begin + limit < len(items) else ""
        return web.json_response(
            {
                "kind": "EndpointSliceList",
                "metadata": {"resourceVersion": at, **({"continue": rest} if rest else {})},
                "items": items[begin : begin + limit],
            }
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        seen, cut, sent_raw = int(request.query["resourceVersion"]), self._cut, len(self.lines)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if seen < self.oldest:
            gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        self.watches += 1
        ends_s = asyncio.get_running_loop().time() + int(request.query["timeoutSeconds"])
        try:
            while self._cut == cut:
                for version, line in list(self.events):
                    if version > seen:
                        seen = version
                        # In two pieces: lines do not come in chunks of their own.
                        await response.write(line.encode()[:20])
                        await response.write(line.encode()[20:] + b"\n")
                for line_sent in self.lines[sent_raw:]:
                    await response.write(line_sent)
                sent_raw = len(self.lines)
                changed, left_s = self._changed, ends_s - asyncio.get_running_loop().time()
                try:
                    async with asyncio.timeout(left_s):
                        await changed.wait()
                except TimeoutError:
                    return response
            if request.transport is not None:
                request.transport.abort()
            return response
        except ConnectionError:  # the other side has given it up
            return response
        finally:
            self.watches -= 1

    def _tell(self, kind: str, told: dict[str, Any]) -> None:
        self.events.append((self.version, json.dumps({"type": kind, "object": told})))
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _status(code: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(
        {"kind": "Status", "code": code, "message": message}, status=code, headers=headers
    )
