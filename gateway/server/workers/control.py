"""One control plane of several workers, or of gateways on several machines: asks theirs, and answers for all.

Who asks is checked by the workers: what a caller sends is passed on as it is, and nothing is answered unless
a worker has answered it.

`_ROUTES` says of each path how it is answered; a test compares it with what a worker has.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import orjson
from aiohttp import web

from gateway.dashboard.history_views import merge_looks, merge_session_pages
from gateway.server.audit import acted
from gateway.server.control_access import TRACES_PATH
from gateway.server.settings import DIFF_PATH, RELOAD_PATH, Record, SettingsPlane
from gateway.server.workers.control_line import Answer, ControlLine
from gateway.server.workers.merged_events import MergedEvents, Positions
from gateway.server.workers.merged_metrics import Totals, merge
from gateway.server.workers.merged_views import View, merge_graphs, merge_snapshots

_log = logging.getLogger(__name__)
_MAX_BODY: Final = 8 << 20
"""As much as a worker reads of a body, at most."""
_MAX_BODIES: Final = 8
_BODY_S: Final = 20.0
_ASK_S: Final = 30.0
_MISSING_S: Final = 10.0
"""For so long a worker may be missing, and the gateway is still ready."""


class How(Enum):
    """How a request is answered."""

    ANY = "any"
    """By a worker: all would say the same."""
    KNOWS = "knows"
    """All are asked; the one that knows answers."""
    ALL = "all"
    """All are told; a refusal by one is a refusal."""
    METRICS = "metrics"
    SNAPSHOT = "snapshot"
    GRAPHS = "graphs"
    HISTORY = "history"
    """Those that have one answer, and are added up."""
    SESSION = "session"
    """The same, of those that had a part of it."""
    EVENTS = "events"
    HEALTH = "health"
    READINESS = "readiness"
    SETTINGS = "settings"
    """By the parent, if a worker says that who asks may; by all, where there is no parent."""


_ROUTES: Final = (
    ("GET", "/turnpike", How.ANY),
    ("GET", "/turnpike/", How.ANY),
    ("GET", "/turnpike/static/{file:.*}", How.ANY),
    ("GET", "/turnpike/healthz", How.HEALTH),
    ("GET", "/turnpike/readyz", How.READINESS),
    ("GET", "/turnpike/snapshot", How.SNAPSHOT),
    ("GET", "/turnpike/events", How.EVENTS),
    ("GET", "/turnpike/turns/{id}", How.KNOWS),
    ("GET", "/turnpike/graphs", How.GRAPHS),
    ("GET", "/turnpike/history", How.HISTORY),
    ("GET", "/turnpike/sessions/{id}", How.SESSION),
    ("POST", "/turnpike/sessions/{id}/finish", How.KNOWS),
    ("POST", "/turnpike/sessions/{id}/stop", How.KNOWS),
    ("GET", "/metrics", How.METRICS),
    ("POST", "/turnpike/replicas", How.ALL),
    ("DELETE", "/turnpike/replicas/{name}", How.ALL),
    ("POST", "/turnpike/replicas/{name}/drain", How.ALL),
    ("POST", "/turnpike/hosts/{name}", How.ALL),
    ("POST", DIFF_PATH, How.SETTINGS),
    ("POST", RELOAD_PATH, How.SETTINGS),
    ("POST", TRACES_PATH, How.ALL),
)
_TOLD_TO_LATER_ONES: Final = ("/turnpike/replicas", "/turnpike/hosts/")
"""Of what is said of the fleet, workers that come later must hear too; of drains the store tells."""
_MAX_TOLD: Final = 4096


class Told(NamedTuple):
    """What all workers were told."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Workers(Protocol):
    """What the supervisor knows of its workers."""

    @property
    def running(self) -> Sequence[ControlLine]: ...

    @property
    def serving(self) -> Sequence[ControlLine]:
        """Those that are to stay."""

    @property
    def missing_s(self) -> float:
        """For how long one has been missing, or has not answered."""

    wanted: int
    restarts: int
    gone: Totals
    is_ending: bool


def _written(view: Any) -> bytes:
    """As JSON; a number as a key, as histograms have them, becomes text."""
    return orjson.dumps(view, option=orjson.OPT_NON_STR_KEYS)


class MergedControl:
    def __init__(
        self,
        workers: Workers,
        *,
        began_s: float | None = None,
        noun: str = "worker",
        has_metrics: bool = True,
        settings: SettingsPlane | None = None,
        record: Record = lambda *_: None,
    ) -> None:
        """`began_s`: when all began, in Unix time; None for when the first of them did. `noun`: what each is
        called. `has_metrics`: whether totals are kept over their restarts, so that they can be added up.
        `settings`: of all; None if each has its own. `record`: keeps who did what with them."""
        self._workers = workers
        self._settings = settings
        self._record = record
        self._began_s = began_s
        self._noun = noun
        self._has_metrics = has_metrics
        self._events = MergedEvents(lambda: workers.running, is_over=lambda: not workers.running)
        self._bodies = asyncio.Semaphore(_MAX_BODIES)
        self._told: dict[str, Told] = {}
        """By what they are about; the newest of each."""
        self._handlers: dict[How, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            How.ANY: self._ask_any,
            How.KNOWS: self._ask_who_knows,
            How.ALL: self._tell_all,
            How.METRICS: self._get_metrics,
            How.SNAPSHOT: self._get_snapshot,
            How.GRAPHS: self._get_graphs,
            How.HISTORY: partial(self._add_up, merge_looks),
            How.SESSION: partial(self._add_up, merge_session_pages),
            How.EVENTS: self._events.serve,
            How.HEALTH: self._get_health,
            How.READINESS: self._get_readiness,
            How.SETTINGS: self._change_settings,
        }

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY + 1)
        for method, path, how in _ROUTES:
            app.router.add_route(method, path, self._handlers[how])
            if method == "GET":
                app.router.add_route("HEAD", path, self._handlers[how])
        return app

    async def tell(self, worker: ControlLine) -> None:
        """All that the others were told before this one was there."""
        for told in list(self._told.values()):
            answer = await worker.ask(*told)
            if answer is not None and answer.status >= 300:
                _log.warning("worker %d was not told %s %s: %d", worker.number, *told[:2], answer.status)

    # --- how requests are answered -----------------------------------------------------------------

    async def _ask_any(self, request: web.Request) -> web.StreamResponse:
        for worker in (*self._workers.serving, *self._workers.running):
            answer = await worker.ask(request.method, request.path_qs, request.headers, timeout_s=_ASK_S)
            if answer is not None:
                return _passed_on(answer)
        return self._none_answers()

    async def _ask_who_knows(self, request: web.Request) -> web.StreamResponse:
        answers = [answer for _, answer in await self._ask_all(request)]
        known = [answer for answer in answers if answer.status != 404]
        return _passed_on((known or answers)[0]) if answers else self._none_answers()

    async def _tell_all(self, request: web.Request) -> web.StreamResponse:
        answers = [answer for _, answer in await self._ask_all(request)]
        if not answers:
            return self._none_answers()
        for answer in answers:
            if answer.status < 300:
                self._remember(request, await request.read(), answer)
                break
        # Where all agree, one may have more to say: why it left out a part.
        return _passed_on(max(answers, key=lambda answer: (answer.status >= 300, len(answer.body))))

    async def _get_metrics(self, request: web.Request) -> web.StreamResponse:
        if not self._has_metrics:
            return web.json_response({"error": f"each {self._noun} has metrics of its own"}, status=404)
        answers = await self._ask_all(request)
        if (refused := self._refusal(answers)) is not None:
            return refused
        for worker, answer in answers:
            worker.last_metrics = answer.body
        text = merge(
            [(worker.number, worker.last_metrics) for worker in self._workers.running],
            self._workers.gone,
            wanted=self._workers.wanted,
            running=len(self._workers.serving),
            restarts=self._workers.restarts,
        )
        return web.Response(body=text, headers={"Content-Type": answers[0][1].headers["Content-Type"]})

    async def _get_snapshot(self, request: web.Request) -> web.StreamResponse:
        answers = await self._ask_all(request)
        if (refused := self._refusal(answers)) is not None:
            return refused
        views = [orjson.loads(answer.body) for _, answer in answers]
        positions = Positions(
            {worker.serial: view.get("seq", 0) for (worker, _), view in zip(answers, views, strict=True)}
        )
        began_s = min(view["began_s"] for view in views) if self._began_s is None else self._began_s
        merged = merge_snapshots(views, began_s=began_s, seq=str(positions))
        return _passed_on(answers[0][1]._replace(body=_written(merged)))

    async def _get_graphs(self, request: web.Request) -> web.StreamResponse:
        answers = await self._ask_all(request)
        if (refused := self._refusal(answers)) is not None:
            return refused
        merged: Any = merge_graphs(orjson.loads(answer.body) for _, answer in answers)
        return _passed_on(answers[0][1]._replace(body=_written(merged)))

    async def _add_up(
        self, merge_all: Callable[[list[View]], View], request: web.Request
    ) -> web.StreamResponse:
        answers = [answer for _, answer in await self._ask_all(request)]
        told = [answer for answer in answers if answer.status == 200]
        if len(told) == 1 or not told:
            return _passed_on((told or answers)[0]) if answers else self._none_answers()
        merged = merge_all([orjson.loads(answer.body) for answer in told])
        return _passed_on(told[0]._replace(body=_written(merged)))

    async def _get_health(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok"})

    async def _get_readiness(self, request: web.Request) -> web.StreamResponse:
        """As long as one worker is ready, and none is missing for long."""
        answers = await asyncio.gather(
            *(
                worker.ask("GET", request.path_qs, request.headers, timeout_s=1.0)
                for worker in self._workers.serving
            )
        )
        told = [answer for answer in answers if answer is not None]
        failing = sorted({name for each in told for name in orjson.loads(each.body)["failing"]})
        if missing := self._workers.wanted - len(told):
            failing.append(f"{self._noun}s ({missing} of {self._workers.wanted} missing)")
        is_ready = (
            not self._workers.is_ending
            and any(each.status == 200 for each in told)
            and self._workers.missing_s < _MISSING_S
        )
        return web.json_response({"ready": is_ready, "failing": failing}, status=200 if is_ready else 503)

    async def _change_settings(self, request: web.Request) -> web.StreamResponse:
        """Workers check who asks."""
        if self._settings is None:
            return await self._tell_all(request)
        for worker in (*self._workers.serving, *self._workers.running):
            may = await worker.ask("POST", request.path, request.headers)
            if may is not None and may.status == 204:
                response = await self._settings.answer(request)
                self._record(*acted(request), response.status)
                return response
            if may is not None:
                return _passed_on(may)
        return self._none_answers()

    # --- workers -----------------------------------------------------------------------------------

    async def _ask_all(self, request: web.Request) -> list[tuple[ControlLine, Answer]]:
        """What those said that answered."""
        async with self._bodies:
            body = await _body(request)
            workers = self._workers.running
            answers = await asyncio.gather(
                *(
                    worker.ask(request.method, request.path_qs, request.headers, body, timeout_s=_ASK_S)
                    for worker in workers
                )
            )
        return [(worker, each) for worker, each in zip(workers, answers, strict=True) if each is not None]

    def _refusal(self, answers: list[tuple[ControlLine, Answer]]) -> web.Response | None:
        """What is answered instead, if not all could say how they are."""
        if not answers:
            return self._none_answers()
        refused = [answer for _, answer in answers if answer.status != 200]
        return _passed_on(refused[0]) if refused else None

    def _none_answers(self) -> web.Response:
        error = f"no {self._noun} answers"
        return web.json_response({"error": error}, status=503, headers={"Retry-After": "1"})

    def _remember(self, request: web.Request, body: bytes, answer: Answer) -> None:
        path = about = request.path_qs
        if not path.startswith(_TOLD_TO_LATER_ONES) or path.endswith("/drain"):
            return
        if request.method == "DELETE":
            self._told.pop(path, None)
            return
        if path == "/turnpike/replicas":
            about = f"{path}/{orjson.loads(answer.body)['name']}"
        self._told[about] = Told(request.method, path, dict(request.headers), body)
        while len(self._told) > _MAX_TOLD:
            self._told.pop(next(iter(self._told)))


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
