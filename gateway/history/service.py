"""`turnpike history`: follows gateways, deletes what is too old, and answers over HTTP."""

import argparse
import asyncio
import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
from aiohttp import web

from gateway.config.addresses import check_url
from gateway.config.load import ConfigError, read_api_key
from gateway.config.server import is_loopback, listen_of
from gateway.history.answers import Answers
from gateway.history.sources import Events, Files
from gateway.history.store import Store
from gateway.server.admin.access import ControlAccess
from gateway.server.admin.unknown_paths import explain_unknown
from gateway.server.auth.client_keys import hash_key
from gateway.server.http.listening import binding
from gateway.server.runtime.tasks import TaskGroup
from gateway.telemetry.log_lines import ChangeLog

_LISTEN: Final = "127.0.0.1:8070"  # below 8081, from which on workers have their control planes
_PATH: Final = "turnpike-history.sqlite"
_PERIOD_S: Final = 1.0
_MAX_WAITING: Final = 16  # questions; more are refused
_FAULTS: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError, sqlite3.Error)
T = TypeVar("T")


def add_history(commands: Any) -> None:
    history = commands.add_parser("history", help="keep what gateways did, and answer for it")
    add, again = history.add_argument, {"action": "append", "default": list[str]()}
    add("--gateway", **again, metavar="URL", help="a control plane to follow; again for more")
    add("--stream", **again, metavar="FILE", help="a stream.path to follow; again for more")
    add("--path", default=_PATH, metavar="FILE", help=f"the SQLite file (default {_PATH})")
    add("--listen", default=_LISTEN, metavar="HOST:PORT", help=f"where it answers (default {_LISTEN})")
    add("--max-mb", type=int, default=4096, metavar="N", help="of the file; the oldest go (default 4096)")
    add("--max-age-h", type=float, default=168.0, metavar="H", help="delete older records (default 168)")
    add("--gateway-key-env", metavar="VARIABLE", help="the environment variable with the gateways' read key")
    add("--key-env", metavar="VARIABLE", help="the environment variable with the key that readers must send")
    history.set_defaults(command=_history)


def _history(arguments: argparse.Namespace) -> int:
    for url in arguments.gateway:
        check_url("--gateway", url)
    if not arguments.gateway and not arguments.stream:
        raise ConfigError("nothing to follow: name a --gateway URL, or a --stream FILE")
    if arguments.max_mb < 16 or not arguments.max_age_h > 0:
        raise ConfigError("--max-mb is at least 16, --max-age-h more than 0")
    host, port = listen_of("--listen", arguments.listen)
    gateway_key = read_api_key(arguments.gateway_key_env, None, os.environ, named="--gateway-key-env")
    key = read_api_key(arguments.key_env, None, os.environ, named="--key-env")
    if key is None and not is_loopback(arguments.listen):
        raise ConfigError(f"--listen: {arguments.listen} is reachable from elsewhere; name a --key-env")
    sources: list[Events | Files] = [Events(each, gateway_key) for each in arguments.gateway]
    sources += map(Files, map(Path, arguments.stream))
    path = Path(arguments.path)
    store = Store(path, max_bytes=arguments.max_mb << 20, max_age_s=arguments.max_age_h * 3600)
    hashes = [hash_key(key)] if key is not None else []
    access = ControlAccess(write_hashes=(), read_hashes=hashes, hosts=[host.lower()])
    app = History(Answers(path), store, sources).app(access)
    with binding("--listen", arguments.listen):
        web.run_app(app, host=host, port=port, access_log=None, print=lambda _: None)
    return 0


class History:
    """One thread writes, another one answers; the loop waits for neither."""

    def __init__(self, answers: Answers, store: Store, sources: Sequence[Events | Files]) -> None:
        self._answers, self._store, self._sources = answers, store, sources
        self._writer, self._reader = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._waiting, self._log = 0, ChangeLog()
        self._failing = {each.name: "" for each in sources}  # why; empty before the first try

    def app(self, access: ControlAccess) -> web.Application:
        app = web.Application(middlewares=[access.check, explain_unknown])
        answering, answers = partial(partial, self._answer), self._answers
        app.router.add_get("/turnpike/turns/{id}", answering(answers.turn))
        app.router.add_get("/turnpike/sessions/{id}", answering(answers.session))
        app.router.add_get("/turnpike/history", answering(answers.look))
        app.router.add_get("/turnpike/readyz", self._get_readiness)
        app.cleanup_ctx.append(self._run)
        return app

    async def _run(self, _: web.Application) -> AsyncIterator[None]:
        tasks = TaskGroup()
        for source in self._sources:
            tasks.supervise("follower", partial(self._follow, source), of=source.name)
        tasks.supervise("pruning", self._prune)
        yield
        await tasks.cancel()
        for each in (self._writer, self._reader):
            await asyncio.to_thread(each.shutdown)
        self._answers.close()
        self._store.close()

    async def _follow(self, source: Events | Files) -> None:
        name = source.name
        while True:
            try:
                position = await self._write(self._store.position, name)
                async with contextlib.aclosing(source.batches(position)) as batches:
                    async for batch in batches:
                        if batch.lines or batch.gaps or batch.begins:
                            await self._write(self._store.write, name, batch)
                        if batch.gaps:
                            self._log.log(f"gaps of {name}", logging.WARNING, "records_missing", source=name)
                        if self._failing.pop(name, None) is not None:
                            self._log.log(name, logging.INFO, "source_up", source=name)
                raise OSError("the stream ended")
            except _FAULTS as error:
                why = str(error) or type(error).__name__
                if not self._failing.get(name):
                    self._log.log(name, logging.WARNING, "source_down", source=name, cause=why)
                self._failing[name] = why
            await asyncio.sleep(_PERIOD_S)

    async def _prune(self) -> None:
        while True:
            with contextlib.suppress(sqlite3.Error):  # whoever writes meets it, too
                while await self._write(partial(self._store.prune, now=time.time())):
                    pass
            await asyncio.sleep(_PERIOD_S)

    async def _write(self, work: Callable[..., T], *about: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work, *about)

    async def _get_readiness(self, _: web.Request) -> web.Response:
        failing = [f"{len(self._failing)} of {len(self._sources)} sources"] if self._failing else []
        return web.json_response({"ready": not failing, "failing": failing}, status=503 if failing else 200)

    async def _answer(self, answer: Callable[..., Any], request: web.Request) -> web.Response:
        if self._waiting >= _MAX_WAITING:
            return web.json_response({"error": "too many questions at a time"}, status=503)
        self._waiting += 1
        question = partial(self._answers.encoded, answer, request.match_info.get("id"), request.query)
        try:
            body = await asyncio.get_running_loop().run_in_executor(self._reader, question)
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        except sqlite3.Error as error:
            return web.json_response({"error": f"no answer: {error}"}, status=503)
        finally:
            self._waiting -= 1
        if body is None:
            return web.json_response({"error": "unknown or expired id"}, status=404)
        return web.Response(body=body, content_type="application/json")
