"""The entry points that vLLM loads by name (``VLLM_PLUGINS=turnpike``).

vLLM loads every plugin that is installed, unless ``VLLM_PLUGINS`` names some. This one does nothing unless it
is named: the hint key, the engine core and the API server stay as they are.

`register` (``vllm.general_plugins``) runs in every process and gives the engine core its utility methods.
`Endpoints` (``vllm.endpoint_plugins``) adds routes to the API server:

* ``GET /turnpike/key``: with what a gateway signs the hints that go with requests.
* ``POST /turnpike/hints``: one hint, or ``{"hints": [...]}``.
* ``GET /turnpike/kv``: a snapshot.

Where the server has API keys, from ``--api-key`` or ``VLLM_API_KEY``, these routes want one too: vLLM itself
guards other paths alone. Whoever can read the hint key can hint: without API keys, nobody but gateways
should reach the server. The gauges ``turnpike_engine_*`` appear in ``/metrics``.
"""

import asyncio
import hmac
import importlib
import json
import logging
import os
from argparse import Namespace
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from turnpike_vllm import hints, utilities
from turnpike_vllm.api import secret_keys
from turnpike_vllm.api.gauges import Gauges
from turnpike_vllm.hints import Refusal
from turnpike_vllm.settings import SettingsError, read_settings
from turnpike_vllm.telemetry import merge_ranks

logger = logging.getLogger("vllm.turnpike")

GAUGES_S = 5.0
# How long after a deadline an idle engine is looked at.
SOON_S = 0.02
MAX_BODY = 1 << 20


def register() -> None:
    """Give the engine core the methods of `utilities`. Safe to call twice."""
    if not is_named():
        return
    secret_keys.hint_key()  # before this process starts others
    core = importlib.import_module("vllm.v1.engine.core").EngineCore
    for name, method in utilities.METHODS.items():
        setattr(core, name, method)


def is_named() -> bool:
    """Whether ``VLLM_PLUGINS`` names this plugin."""
    return "turnpike" in os.environ.get("VLLM_PLUGINS", "").split(",")  # as vLLM reads it


class Endpoints:
    name = "turnpike"
    required_tasks = None

    def __init__(self) -> None:
        self._engine: Any = None
        self._keys: list[bytes] = []
        self._hint_key: str | None = None
        self._gauges: Gauges | None = None
        self._refreshing: asyncio.Task[None] | None = None

    def attach_router(self, app: Any) -> None:
        if not is_named():
            return
        fastapi = importlib.import_module("fastapi")
        responses = importlib.import_module("fastapi.responses")

        def answer(status: int, body: dict[str, Any]) -> Any:
            return responses.JSONResponse(body, status_code=status)

        def guarded(path: str, serve: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
            async def route(request: Any) -> Any:
                if not self._may(request):
                    return answer(401, {"error": "an API key is needed"})
                return await serve(request)

            route.__annotations__["request"] = fastapi.Request
            route.__name__ = path.strip("/").replace("/", "_")
            return route

        async def post_hints(request: Any) -> Any:
            raw = await _read(request)
            if raw is None:
                return answer(413, {"error": f"at most {MAX_BODY} bytes"})
            status, body = await self.take_hints(raw)
            return answer(status, body)

        async def get_key(request: Any) -> Any:
            return answer(200, {"key": self._hint_key})

        async def get_kv(request: Any) -> Any:
            return answer(*await self.snapshot())

        app.post("/turnpike/hints")(guarded("/turnpike/hints", post_hints))
        app.get("/turnpike/key")(guarded("/turnpike/key", get_key))
        app.get("/turnpike/kv")(guarded("/turnpike/kv", get_kv))

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """``engine_client`` is None where there is no engine; the routes then answer 503."""
        if not is_named():
            return
        self._engine = getattr(engine_client, "engine_core", None)
        self._keys = secret_keys.api_keys(getattr(args, "api_key", None))
        try:
            is_signed = read_settings(getattr(args, "additional_config", None)).signed_hints
        except SettingsError:  # the scheduler says so, and follows no hints
            is_signed = True
        self._hint_key = secret_keys.hint_key() if is_signed else None
        if self._engine is not None:
            self._gauges = Gauges.known()
            self._refreshing = asyncio.create_task(self._refresh())

    async def take_hints(self, raw: bytes) -> tuple[int, dict[str, Any]]:
        """Status and body of an answer to ``POST /turnpike/hints``."""
        try:
            parsed = hints.parse_many(json.loads(raw))
        except (ValueError, RecursionError):
            parsed = [Refusal.MALFORMED]
        refused = Counter(each.value for each in parsed if isinstance(each, Refusal))
        valid = [each.as_dict() for each in parsed if not isinstance(each, Refusal)]
        snapshot = await self._call(utilities.HINT, valid, dict(refused))
        if snapshot is None or snapshot.get("state") == "absent":
            return 503, snapshot or {"state": "absent"}
        return 200 if valid or not refused else 400, snapshot | {"refused": dict(refused)}

    async def snapshot(self) -> tuple[int, dict[str, Any]]:
        snapshot = await self._read()
        if snapshot is None:
            return 503, {"state": "absent"}
        if self._gauges is not None:
            self._gauges.show(snapshot)
        return 200, snapshot

    async def _call(self, method: str, *arguments: Any) -> dict[str, Any] | None:
        """None if there is no engine that could answer."""
        if self._engine is None:
            return None
        try:
            found = await self._engine.call_utility_async(method, *arguments)
        except Exception as error:  # noqa: BLE001  # vLLM raises bare Exceptions for a method that failed
            logger.warning("turnpike: the engine core did not answer %s: %s", method, error)
            return None
        return found if isinstance(found, dict) else None

    async def _read(self) -> dict[str, Any] | None:
        """A snapshot of all ranks together."""
        ranks = len(getattr(self._engine, "core_engines", ()))
        call_all = getattr(self._engine, "call_utility_all_async", None)
        if ranks < 2 or call_all is None:
            snapshot = await self._call(utilities.READ)
            if snapshot is not None and ranks > 1 and "features" in snapshot:
                snapshot["features"] = {
                    **snapshot["features"],
                    "telemetry": f"of the first of {ranks} ranks alone",
                }
            return snapshot
        try:
            found = await call_all(utilities.READ)
        except Exception as error:  # noqa: BLE001  # as in `_call`
            logger.warning("turnpike: the engine cores did not answer: %s", error)
            return None
        return merge_ranks(found)

    async def _refresh(self) -> None:
        """Keep the gauges fresh, and an idle engine's deadlines."""
        while True:
            snapshot = await self._read()
            if snapshot is not None and self._gauges is not None:
                self._gauges.show(snapshot)
            if snapshot is None or snapshot.get("state") == "absent":
                return
            await asyncio.sleep(_until_deadline(snapshot) if _is_idle(snapshot) else GAUGES_S)

    def _may(self, request: Any) -> bool:
        if not self._keys:
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.encode("utf-8", "surrogateescape")
        known = [hmac.compare_digest(given, key) for key in self._keys]
        return scheme.lower() == "bearer" and any(known)


def _until_deadline(snapshot: dict[str, Any]) -> float:
    deadline_s = snapshot.get("next_deadline_s")
    return GAUGES_S if deadline_s is None else min(GAUGES_S, deadline_s + SOON_S)


def _is_idle(snapshot: dict[str, Any]) -> bool:
    """Then no step meets what is due: a session to be called back, say."""
    return not any(snapshot.get("running", {}).values())


async def _read(request: Any) -> bytes | None:
    """The body, or None if it is too long."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            return None
    return body
