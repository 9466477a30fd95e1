"""The control plane: what operators and probes ask, on a listener of its own."""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from gateway.core import events as ev
from gateway.core.snapshot import Snapshot
from gateway.domain.ids import SessionId
from gateway.server.driver import Driver
from gateway.server.tenants import hash_key
from gateway.telemetry.metrics import Metrics

_OPEN_PATHS = frozenset(("/turnpike/healthz", "/turnpike/readyz"))
"""Orchestrators' probes carry no key."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ControlPlane:
    def __init__(
        self,
        driver: Driver,
        metrics: Metrics,
        snapshot: Callable[[], Snapshot],
        *,
        key_hashes: tuple[str, ...],
        is_draining: Callable[[], bool],
    ) -> None:
        self._driver = driver
        self._metrics = metrics
        self._snapshot = snapshot
        self._key_hashes = frozenset(key_hashes)
        self._is_draining = is_draining

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._authenticate])
        app.add_routes(
            [
                web.get("/turnpike/healthz", self._healthz),
                web.get("/turnpike/readyz", self._readyz),
                web.get("/turnpike/snapshot", self._get_snapshot),
                web.post("/turnpike/sessions/{id}/finish", self._finish_session),
                web.get("/metrics", self._get_metrics),
            ]
        )
        return app

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if self._key_hashes and request.path not in _OPEN_PATHS:
            scheme, _, key = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or hash_key(key.strip()) not in self._key_hashes:
                return web.json_response({"error": "a control key is required"}, status=401)
        return await handler(request)

    async def _healthz(self, _: web.Request) -> web.Response:
        """The process is alive."""
        return web.json_response({"status": "ok"})

    async def _readyz(self, _: web.Request) -> web.Response:
        """Requests can be served: at least one replica is up, and we are not draining."""
        is_ready = not self._is_draining() and any(replica.is_up for replica in self._snapshot().replicas)
        return web.json_response({"ready": is_ready}, status=200 if is_ready else 503)

    async def _get_snapshot(self, _: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._snapshot()), content_type="application/json")

    async def _finish_session(self, request: web.Request) -> web.Response:
        session = SessionId(request.match_info["id"])
        if self._driver.coordinator.sessions.sessions.get(session) is None:
            return web.json_response({"error": "no such session"}, status=404)
        self._driver.send(ev.SessionFinished(session))
        return web.json_response({"session": session, "finished": True})

    async def _get_metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4"}
        )
