"""One control plane of several gateways: asks theirs, and answers for all.

Keys and host names are checked by the gateways: what a caller sends is passed on as it is, and nothing is
answered unless a gateway has answered it.

`ROUTES` has for each path how it is answered; a test compares it with what a gateway has.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Final

import orjson
from aiohttp import web

from gateway.server.aggregator.control_client import Answer, ControlClient
from gateway.server.aggregator.merged_events import MergedEvents, Positions
from gateway.server.aggregator.merged_views import merge_graphs, merge_snapshots
from gateway.server.control_access import TRACES_PATH
from gateway.server.settings import DIFF_PATH, RELOAD_PATH

_MAX_BODY: Final = 8 << 20
"""As much as a gateway reads of a body, at most."""
_MAX_BODIES: Final = 8
_BODY_S: Final = 20.0
_ASK_S: Final = 30.0


class How(Enum):
    """How a request is answered."""

    ANY = "any"
    """By a gateway: all have the same."""
    KNOWS = "knows"
    """All are asked; the one that knows answers."""
    ALL = "all"
    """Goes to all; a refusal by one is a refusal."""
    METRICS = "metrics"
    """Not at all: Prometheus scrapes each gateway."""
    SNAPSHOT = "snapshot"
    GRAPHS = "graphs"
    EVENTS = "events"
    HEALTH = "health"
    READINESS = "readiness"


ROUTES: Final = (
    ("GET", "/", How.ANY),
    ("GET", "/turnpike", How.ANY),
    ("GET", "/turnpike/", How.ANY),
    ("GET", "/turnpike/static/{file:.*}", How.ANY),
    ("GET", "/turnpike/healthz", How.HEALTH),
    ("GET", "/turnpike/readyz", How.READINESS),
    ("GET", "/turnpike/snapshot", How.SNAPSHOT),
    ("GET", "/turnpike/events", How.EVENTS),
    ("GET", "/turnpike/turns/{id}", How.KNOWS),
    ("GET", "/turnpike/graphs", How.GRAPHS),
    ("GET", "/turnpike/history", How.ANY),
    ("GET", "/turnpike/sessions/{id}", How.KNOWS),
    ("POST", "/turnpike/sessions/{id}/finish", How.KNOWS),
    ("POST", "/turnpike/sessions/{id}/stop", How.KNOWS),
    ("GET", "/metrics", How.METRICS),
    ("POST", "/turnpike/replicas", How.ALL),
    ("DELETE", "/turnpike/replicas/{name}", How.ALL),
    ("POST", "/turnpike/replicas/{name}/drain", How.ALL),
    ("POST", "/turnpike/hosts/{name}", How.ALL),
    ("POST", DIFF_PATH, How.ALL),
    ("POST", RELOAD_PATH, How.ALL),
    ("POST", TRACES_PATH, How.ALL),
)


def _written(view: Any) -> bytes:
    return orjson.dumps(view, option=orjson.OPT_NON_STR_KEYS)


class AggregatedControl:
    """Of those that do not answer nothing is shown."""

    def __init__(self, gateways: Sequence[ControlClient]) -> None:
        self._gateways = gateways
        self._events = MergedEvents(gateways)
        self._bodies = asyncio.Semaphore(_MAX_BODIES)
        self._handlers: dict[How, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            How.ANY: self._ask_any,
            How.KNOWS: self._ask_who_knows,
            How.ALL: self._send_to_all,
            How.METRICS: self._refuse_metrics,
            How.SNAPSHOT: self._get_snapshot,
            How.GRAPHS: self._get_graphs,
            How.EVENTS: self._events.serve,
            How.HEALTH: self._get_health,
            How.READINESS: self._get_readiness,
        }

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY + 1)
        for method, path, how in ROUTES:
            app.router.add_route(method, path, self._handlers[how])
            if method == "GET":
                app.router.add_route("HEAD", path, self._handlers[how])
        return app

    def close(self) -> None:
        self._events.close()

    # --- how requests are answered -----------------------------------------------------------------

    async def _ask_any(self, request: web.Request) -> web.StreamResponse:
        for gateway in self._gateways:
            answer = await gateway.ask(request.method, request.path_qs, request.headers, timeout_s=_ASK_S)
            if answer is not None:
                return _passed_on(answer)
        return _none_answers()

    async def _ask_who_knows(self, request: web.Request) -> web.StreamResponse:
        answers = [answer for _, answer in await self._ask_all(request)]
        known = [answer for answer in answers if answer.status != 404]
        return _passed_on((known or answers)[0]) if answers else _none_answers()

    async def _send_to_all(self, request: web.Request) -> web.StreamResponse:
        answers = [answer for _, answer in await self._ask_all(request)]
        if not answers:
            return _none_answers()
        # Where all agree, one may have more to say: why it left out a part.
        return _passed_on(max(answers, key=lambda answer: (answer.status >= 300, len(answer.body))))

    async def _refuse_metrics(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "each gateway has metrics of its own"}, status=404)

    async def _get_snapshot(self, request: web.Request) -> web.StreamResponse:
        answers = await self._ask_all(request)
        if (refused := _refusal(answers)) is not None:
            return refused
        views = [orjson.loads(answer.body) for _, answer in answers]
        positions = Positions(
            {gateway.number: view.get("seq", 0) for (gateway, _), view in zip(answers, views, strict=True)}
        )
        began_s = min(view["began_s"] for view in views)
        merged = merge_snapshots(views, began_s=began_s, seq=str(positions))
        return _passed_on(answers[0][1]._replace(body=_written(merged)))

    async def _get_graphs(self, request: web.Request) -> web.StreamResponse:
        answers = await self._ask_all(request)
        if (refused := _refusal(answers)) is not None:
            return refused
        merged: Any = merge_graphs(orjson.loads(answer.body) for _, answer in answers)
        return _passed_on(answers[0][1]._replace(body=_written(merged)))

    async def _get_health(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok"})

    async def _get_readiness(self, request: web.Request) -> web.StreamResponse:
        answers = await asyncio.gather(
            *(each.ask("GET", request.path_qs, request.headers, timeout_s=1.0) for each in self._gateways)
        )
        found = [answer for answer in answers if answer is not None]
        failing = sorted({name for each in found for name in orjson.loads(each.body)["failing"]})
        if missing := len(answers) - len(found):
            failing.append(f"gateways ({missing} of {len(answers)} missing)")
        is_ready = any(each.status == 200 for each in found)
        return web.json_response({"ready": is_ready, "failing": failing}, status=200 if is_ready else 503)

    async def _ask_all(self, request: web.Request) -> list[tuple[ControlClient, Answer]]:
        async with self._bodies:
            body = await _body(request)
            answers = await asyncio.gather(
                *(
                    each.ask(request.method, request.path_qs, request.headers, body, timeout_s=_ASK_S)
                    for each in self._gateways
                )
            )
        return [
            (each, answer) for each, answer in zip(self._gateways, answers, strict=True) if answer is not None
        ]


def _refusal(answers: list[tuple[ControlClient, Answer]]) -> web.Response | None:
    if not answers:
        return _none_answers()
    refused = [answer for _, answer in answers if answer.status != 200]
    return _passed_on(refused[0]) if refused else None


def _none_answers() -> web.Response:
    return web.json_response({"error": "no gateway answers"}, status=503, headers={"Retry-After": "1"})


async def _body(request: web.Request) -> bytes:
    if not request.body_exists:
        return b""
    try:
        async with asyncio.timeout(_BODY_S):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None


def _passed_on(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
