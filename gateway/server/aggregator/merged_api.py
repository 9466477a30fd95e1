"""One control plane of several gateways: asks theirs, and answers for all.

Keys and host names are checked by the gateways: what a caller sends is passed on as it is, and nothing is
answered unless a gateway has answered it.

`ROUTES` has for each path how it is answered; a test compares it with what a gateway has.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import orjson
from aiohttp import web

from gateway.server.admin.settings_reload import DIFF_PATH, RELOAD_PATH
from gateway.server.admin.usage import USAGE_PATH, usage_response
from gateway.server.aggregator.control_client import Answer, ControlClient
from gateway.server.aggregator.merged_events import Positions, serve_events
from gateway.server.aggregator.merged_views import merge_graphs, merge_snapshots, merge_usage

# As much as a gateway reads of a body, at most.
_MAX_BODY: Final = 8 << 20
_MAX_BODIES: Final = 8
_BODY_S: Final = 20.0
_ASK_S: Final = 30.0


def _written(view: Any) -> bytes:
    return orjson.dumps(view, option=orjson.OPT_NON_STR_KEYS)


class AggregatedControl:
    """Of those that do not answer nothing is shown."""

    def __init__(self, gateways: Sequence[ControlClient]) -> None:
        self._gateways = gateways
        self._is_closed = asyncio.Event()
        self._bodies = asyncio.Semaphore(_MAX_BODIES)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY + 1)
        for method, path, answer in self.ROUTES:
            app.router.add_route(method, path, partial(answer, self))
            if method == "GET":
                app.router.add_route("HEAD", path, partial(answer, self))
        app.router.add_route("*", "/{unknown:.*}", self._ask_any)  # a gateway says what was meant
        return app

    def close(self) -> None:
        self._is_closed.set()

    async def _ask_any(self, request: web.Request) -> web.StreamResponse:
        for gateway in self._gateways:
            answer = await gateway.ask(request.method, request.path_qs, request.headers, timeout_s=_ASK_S)
            if answer is not None:
                return _passed_on(answer)
        return _none_answers()

    async def _ask_who_knows(self, request: web.Request) -> web.StreamResponse:
        answers = await self._ask_all(request)
        known = [answer for answer in answers if answer.status != 404]
        return _passed_on((known or answers)[0]) if answers else _none_answers()

    async def _send_to_all(self, request: web.Request) -> web.StreamResponse:
        answers = await self._ask_all(request)
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
        views = [orjson.loads(answer.body) for answer in answers]
        seqs = {answer.gateway: view.get("seq", 0) for answer, view in zip(answers, views, strict=True)}
        began_s = min(view["began_s"] for view in views)
        merged = merge_snapshots(views, began_s=began_s, seq=str(Positions(seqs)))
        return _passed_on(answers[0]._replace(body=_written(merged)))

    async def _get_graphs(self, request: web.Request) -> web.StreamResponse:
        answers = await self._ask_all(request)
        if (refused := _refusal(answers)) is not None:
            return refused
        merged: Any = merge_graphs(orjson.loads(answer.body) for answer in answers)
        return _passed_on(answers[0]._replace(body=_written(merged)))

    async def _get_usage(self, request: web.Request) -> web.StreamResponse:
        answers = await self._ask_all(request, f"{USAGE_PATH}?format=json")
        if (refused := _refusal(answers)) is not None:
            return refused
        return usage_response(request, merge_usage([orjson.loads(answer.body) for answer in answers]))

    async def _get_events(self, request: web.Request) -> web.StreamResponse:
        return await serve_events(request, self._gateways, self._is_closed)

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

    ROUTES: Final = (
        ("GET", "/", _ask_any),
        ("GET", "/turnpike", _ask_any),
        ("GET", "/turnpike/", _ask_any),
        ("GET", "/turnpike/static/reasons.js", _ask_any),
        ("GET", "/turnpike/static/{file:.*}", _ask_any),
        ("GET", "/turnpike/healthz", _get_health),
        ("GET", "/turnpike/readyz", _get_readiness),
        ("GET", "/turnpike/snapshot", _get_snapshot),
        ("GET", "/turnpike/events", _get_events),
        ("GET", "/turnpike/turns/{id}", _ask_who_knows),
        ("GET", "/turnpike/graphs", _get_graphs),
        ("GET", USAGE_PATH, _get_usage),
        ("GET", "/turnpike/history", _ask_any),
        ("GET", "/turnpike/sessions/{id}", _ask_who_knows),
        ("POST", "/turnpike/sessions/{id}/finish", _ask_who_knows),
        ("POST", "/turnpike/sessions/{id}/stop", _ask_who_knows),
        ("GET", "/metrics", _refuse_metrics),
        ("POST", "/turnpike/replicas", _send_to_all),
        ("DELETE", "/turnpike/replicas/{name}", _send_to_all),
        ("POST", "/turnpike/replicas/{name}/drain", _send_to_all),
        ("POST", "/turnpike/hosts/{name}", _send_to_all),
        ("POST", DIFF_PATH, _send_to_all),
        ("POST", RELOAD_PATH, _send_to_all),
    )

    async def _ask_all(self, request: web.Request, path: str | None = None) -> list[Answer]:
        method = "GET" if request.method == "HEAD" else request.method  # what is put together has a body
        async with self._bodies:
            body = await _body(request)
            answers = await asyncio.gather(
                *(
                    each.ask(method, path or request.path_qs, request.headers, body, timeout_s=_ASK_S)
                    for each in self._gateways
                )
            )
        return [answer for answer in answers if answer is not None]


def _refusal(answers: list[Answer]) -> web.Response | None:
    if not answers:
        return _none_answers()
    refused = [answer for answer in answers if answer.status != 200]
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
