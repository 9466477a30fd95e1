"""The control plane: for operators, dashboards and probes, on a listener of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Meta

from gateway.core import events as ev
from gateway.dashboard.sentences import script
from gateway.dashboard.views import Views
from gateway.domain.engine import HostSignals
from gateway.domain.ids import SessionId
from gateway.server.admin.access import ControlAccess, key_hash
from gateway.server.admin.audit import Audit
from gateway.server.admin.events import Events
from gateway.server.admin.history_proxy import HistoryProxy
from gateway.server.admin.unknown_paths import explain_unknown
from gateway.server.admin.usage import USAGE_PATH, usage_response
from gateway.server.proxy.driver import Driver
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.reused import Reused

_STATIC: Final = Path(str(resources.files("gateway.dashboard"))) / "static"
# Of metrics and gauges: one rendering serves all requests within so long.
_MAX_AGE_S: Final = 0.25
_MAX_REPORT_BYTES: Final = 4096
_MAX_HOST_NAME: Final = 256
_PAGE_HEADERS: Final = {
    # The page loads nothing from elsewhere, and nobody may put it into a frame.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


# Of a key's hash: enough to identify a key, and nothing to find it by.
_NAMED: Final = slice(7, 15)


class Stopping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    for_s: Annotated[float, Meta(gt=0, le=30 * 86_400)] = 3600.0
    """For so long the session's turns are refused."""
    in_flight: Literal["cancel", "finish"] = "cancel"
    """What becomes of turns that run."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """What the API needs of the process around it."""

    usage: Callable[[], dict[str, Any]]
    """Of tenants."""
    is_retiring: Callable[[], bool]
    failing: Callable[[], list[str]]
    """Background loops that fail, and what lacks for connections."""
    flush: Callable[[], None]
    """Applies pending records, before a read."""
    publish_stop: Callable[[SessionId, float], None] | None
    """Sends the other gateways, if there are any, for how long a session is stopped."""


class ControlPlane:
    def __init__(
        self,
        driver: Driver,
        metrics: Metrics,
        views: Views,
        events: Events | None,
        access: ControlAccess,
        audit: Audit,
        history: HistoryProxy,
        process: Process,
    ) -> None:
        """`events`: None if no record is kept."""
        self._driver = driver
        self._metrics = Reused(metrics.render, max_age_s=_MAX_AGE_S)
        self._gauges = Reused(views.gauges, max_age_s=_MAX_AGE_S)
        self._views = views
        self._events = events
        self._access = access
        self._audit = audit
        self._history = history
        self._process = process

    def app(self) -> web.Application:
        outer = [self._audit.watch, self._access.check]
        app = web.Application(middlewares=[*outer, explain_unknown, self._bring_up_to_date])
        app.add_routes(
            [
                web.get("/", self._to_the_page),
                web.get("/turnpike", self._to_the_page),
                web.get("/turnpike/", self._get_page),
                web.get("/turnpike/static/reasons.js", get_reasons),
                web.get("/turnpike/healthz", self._healthz),
                web.get("/turnpike/readyz", self._readyz),
                web.get("/turnpike/snapshot", self._get_snapshot),
                web.get("/turnpike/events", self._get_events),
                web.get("/turnpike/turns/{id}", self._explain_turn),
                web.get("/turnpike/graphs", self._get_graphs),
                web.get(USAGE_PATH, self._get_usage),
                web.get("/turnpike/history", self._look_back),
                web.get("/turnpike/sessions/{id}", self._get_session),
                web.post("/turnpike/sessions/{id}/finish", self._finish_session),
                web.post("/turnpike/sessions/{id}/stop", self._stop_session),
                web.post("/turnpike/hosts/{name}", self._report_host),
                web.get("/metrics", self._get_metrics),
            ]
        )
        if _STATIC.is_dir():
            app.router.add_static("/turnpike/static/", _STATIC)
        app.on_response_prepare.append(_add_page_headers)
        app.on_shutdown.append(self._close_events)
        return app

    @web.middleware
    async def _bring_up_to_date(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._process.flush()
        return await handler(request)

    async def _close_events(self, _: web.Application) -> None:
        self._process.flush()
        if self._events is not None:
            self._events.close()

    async def _to_the_page(self, _: web.Request) -> web.Response:
        raise web.HTTPFound("/turnpike/")

    async def _get_page(self, _: web.Request) -> web.StreamResponse:
        page = _STATIC / "index.html"
        if not page.is_file():
            return web.json_response({"error": "this installation has no dashboard"}, status=404)
        return web.FileResponse(page)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, _: web.Request) -> web.Response:
        """Requests can be served: a replica is up and not drained, and we do not end. A background loop that
        fails and a replica that is down, ejected or fails are named, and no more: the others still serve."""
        fleet = self._driver.coordinator.fleet
        is_ready = not self._process.is_retiring() and any(
            state.is_up and not state.is_draining for state in fleet
        )
        failing = self._process.failing()
        for each in fleet:
            if not each.is_draining and (how := fleet.health.failing(each.facts.id)) is not None:
                failing.append(f"{each.facts.id} {how}")
        status = {"ready": is_ready, "failing": failing, "down": fleet.down()}
        status["ejected"] = fleet.ejected(now=self._driver.clock())
        return web.json_response(status, status=200 if is_ready else 503)

    async def _get_snapshot(self, request: web.Request) -> web.Response:
        if request.query.get("sessions") == "0":
            return _json(self._gauges.get(now=_now()))
        return _json(await self._views.snapshot())

    async def _get_events(self, request: web.Request) -> web.StreamResponse:
        if self._events is None:
            return web.json_response({"error": "no record is kept: stream.ring_records is 0"}, status=404)
        return await self._events.serve(request)

    async def _explain_turn(self, request: web.Request) -> web.Response:
        hint = "a session's goes to `turnpike trace`"
        return await self._looked_up(request, self._views.explain, "request", hint)

    async def _get_session(self, request: web.Request) -> web.Response:
        hint = "a request's goes to `turnpike explain`"
        return await self._looked_up(request, self._views.session, "session", hint)

    async def _looked_up(
        self, request: web.Request, look_up: Callable[[Any], Awaitable[Any]], what: str, hint: str
    ) -> web.Response:
        if self._history.is_configured:
            response = await self._history.fetch(request.rel_url.raw_path_qs)
            if response.status in (200, 400):
                return response
        if (found := await look_up(request.match_info["id"])) is not None:
            return _json(msgspec.json.encode(found))
        return web.json_response({"error": f"unknown or expired id of a {what}; {hint}"}, status=404)

    async def _look_back(self, request: web.Request) -> web.Response:
        if not self._history.is_configured:
            return web.json_response(
                {"error": "no history is configured: history.url is not set"}, status=404
            )
        return await self._history.fetch(request.rel_url.raw_path_qs)

    async def _get_graphs(self, _: web.Request) -> web.Response:
        return _json(msgspec.json.encode(self._views.graphs()))

    async def _get_usage(self, request: web.Request) -> web.Response:
        return usage_response(request, self._process.usage())

    async def _finish_session(self, request: web.Request) -> web.Response:
        session = SessionId(request.match_info["id"])
        known = self._driver.coordinator.sessions.sessions.get(session)
        if known is None:
            return web.json_response({"error": "no such session"}, status=404)
        if (left_s := known.stopped_until_s - self._driver.clock()) > 0:
            error = f"it is stopped for {left_s:.0f} s more, and ends no sooner; stop it for 1 s instead"
            return web.json_response({"error": error}, status=409)
        self._driver.send(ev.SessionFinished(session))
        return web.json_response({"session": session, "finished": True})

    async def _stop_session(self, request: web.Request) -> web.Response:
        session = SessionId(request.match_info["id"])
        if self._driver.coordinator.sessions.sessions.get(session) is None:
            return web.json_response({"error": "no such session"}, status=404)
        try:
            stop = msgspec.json.decode(await request.read() or b"{}", type=Stopping)
        except msgspec.MsgspecError as error:
            return web.json_response({"error": str(error)}, status=400)
        by = key_hash(request)[_NAMED] if "Authorization" in request.headers else ""
        self._driver.send(ev.SessionStopped(session, stop.for_s, stop.in_flight == "cancel", by))
        if self._process.publish_stop is not None:
            self._process.publish_stop(session, stop.for_s)
        return web.json_response({"session": session, "stopped_for_s": stop.for_s})

    async def _report_host(self, request: web.Request) -> web.Response:
        """What a probe beside tools reports."""
        name = request.match_info["name"]
        body = await request.content.read(_MAX_REPORT_BYTES + 1)
        try:
            if len(body) > _MAX_REPORT_BYTES or len(name) > _MAX_HOST_NAME:
                raise ValueError("too long")
            signals = msgspec.json.decode(body, type=HostSignals)
        except ValueError as error:
            return web.json_response({"error": f"no report of a host: {error}"}, status=400)
        self._driver.send(ev.HostReported(name, signals))
        return web.Response(status=204)

    async def _get_metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.get(now=_now()), headers={"Content-Type": "text/plain; version=0.0.4"}
        )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})


async def get_reasons(_: web.Request) -> web.Response:
    return web.Response(text=script(), content_type="text/javascript")


async def _add_page_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _PAGE_HEADERS.items():
        response.headers.setdefault(name, value)
