"""Health and abilities: is a replica there, what engine is it, what does it serve?

Theory of operation. A check of a replica gets `/health` and `/v1/models`; when it comes up, also `/version`
and `/turnpike/kv` (is the plugin there?). Many servers lack some of these paths, and a proxy may want a
client's key for them, so a replica is down only where it is clear that its URL, or the key that we have for
it, is wrong. *Nothing* is a redirect, 404 or 410, HTML, text but at `/health`, and 401 or 403 to our key; of
`/health` and `/v1/models`, 405 as well. A path of `_SERVED` is *there* if a GET of it gives anything else
(405, mostly), or OPTIONS 2xx, or 405 (with POST in `Allow`, or without) where a path that nobody has gives
something else; where pages are given, so it is with 2xx. Table: `docs/operate/faults.md`.
"""

import asyncio
import codecs
import contextlib
import json
import logging
import os
import re
import socket
import ssl
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

from gateway.config.upstream import UpstreamConfig
from gateway.domain.fleet import Abilities, ReplicaFacts
from gateway.domain.ids import ReplicaId
from gateway.telemetry.log_lines import log_event
from gateway.upstream.bounded_answers import read_at_most
from gateway.upstream.errors import local_kind, lookup_error
from gateway.upstream.replica import Replica, open_session

# Of one answer; it is read at once, which takes a few milliseconds at most.
_MAX_BYTES: Final = 1 << 20
# States of an engine that has the plugin's routes, and whose scheduler lacks it or gave up.
_NOT_FOLLOWED: Final = ("absent", "inert")
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_HTML: Final = -1
# In place of the status of good answers that are no JSON, and not empty.
_TEXT: Final = -2
# In place of 405 to OPTIONS, where `Allow` names it.
_POST: Final = -3
_NO_JSON: Final = {_HTML: "HTML", _TEXT: "text"}
# Statuses of paths at which nothing is.
_NOTHING: Final = _REDIRECTS | {404, 410, *_NO_JSON}
_REFUSED: Final = frozenset((401, 403))
NO_ENGINE: Final = "something answers, but not as an engine"
_NOWHERE: Final = "/v1/no-such-path"
# Of these each engine serves one at least.
_SERVED: Final = tuple(
    "/v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/embeddings /v1/rerank /v1/score "
    "/v1/audio/transcriptions /v1/audio/speech /v1/images/generations /rerank /score /invocations /generate "
    "/api/chat".split()
)
# Then silence is a cause, and a check may go on.
_LATE_S: Final = 3.0
# Characters of a model's name; others are not listed.
_MAX_NAME: Final = 1024
# Of characters: no name has them.
_HALVES: Final = re.compile("[\ud800-\udfff]")


class _Unusable(Exception):  # noqa: N818 - what the answer is
    """An answer that is not read: too large, or nested too deeply. The check has failed."""


class _NoEngine(Exception): ...  # noqa: N818


class HealthChecks:
    """Calls `on_up` and `on_down`; `on_up` again whenever what is known of the replica changed, and after
    `check_now`."""

    def __init__(
        self,
        replicas: Mapping[ReplicaId, Replica],
        config: UpstreamConfig,
        *,
        on_up: Callable[[ReplicaFacts], None],
        on_down: Callable[[ReplicaId, str], None],
        on_late: Callable[[ReplicaId, str], None] = lambda *_: None,
        has_several_pools: bool,
        named_models: Collection[str] = (),
    ) -> None:
        """`on_late`: of one that is not up, and silent while its check goes on. `replicas` may change: those
        that are added are for the caller to `watch`. `named_models`: names of the operator's, to be listed
        with theirs."""
        self._replicas = replicas
        self.apply_config(config, has_several_pools=has_several_pools, named_models=named_models)
        self._on_up = on_up
        self._on_down, self._on_late = on_down, on_late
        self._facts: dict[ReplicaId, ReplicaFacts] = {}
        self._models: dict[ReplicaId, list[dict[str, Any]]] = {}
        self._failures: dict[ReplicaId, int] = {}
        self._wake: dict[ReplicaId, asyncio.Event] = {}
        self._unchecked = set(replicas)
        self._was_checked = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None

    def apply_config(
        self, config: UpstreamConfig, *, has_several_pools: bool, named_models: Collection[str]
    ) -> None:
        self._config = config
        self.named = tuple(named_models)
        # Else the only pool's own listing is passed on.
        self.lists_models = has_several_pools or bool(named_models)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def check_now(self, replica: ReplicaId) -> None:
        if (wake := self._wake.get(replica)) is not None:
            wake.set()

    def suspect(self, replica: ReplicaId, why: str) -> None:
        """It cannot be reached. It is out at once, until a check finds it healthy; else it would look idle
        and draw in every request that waits."""
        if self._facts.pop(replica, None) is not None:
            self._on_down(replica, why)
        self.check_now(replica)

    def abilities(self, replica: ReplicaId) -> Abilities:
        facts = self._facts.get(replica)
        return facts.abilities if facts is not None else Abilities()

    def merged_models(self) -> dict[str, Any]:
        """The models of all pools as one OpenAI list; each model once."""
        return {"object": "list", "data": list(self.cards().values())}

    def cards(self) -> dict[str, dict[str, Any]]:
        found = [self._models.get(replica, []) for replica in self._replicas]
        cards = {
            name: {"id": name, "object": "model", "created": 0, "owned_by": "turnpike"} for name in self.named
        }
        return cards | {model["id"]: model for listing in found for model in listing}

    async def watch(self, replica: Replica) -> None:
        wake = self._wake[replica.id] = asyncio.Event()
        is_wanted = False
        while self._replicas.get(replica.id) is replica:
            await self._check(replica, is_wanted=is_wanted)
            self._unchecked.discard(replica.id)
            self._was_checked.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.health_period_s):
                    await wake.wait()
            is_wanted = wake.is_set()
            if is_wanted:  # not more often than this, however many requests fail
                await asyncio.sleep(min(0.1, self._config.health_period_s))
                wake.clear()

    def left(self, replica: ReplicaId) -> None:
        for known in (self._facts, self._models, self._failures, self._wake):
            known.pop(replica, None)

    async def checked(self, limit_s: float) -> None:
        """Waits until each replica of the beginning was checked once, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._unchecked & self._replicas.keys():
                    self._was_checked.clear()
                    await self._was_checked.wait()

    async def _check(self, replica: Replica, *, is_wanted: bool = False) -> None:
        """`is_wanted`: by `check_now`, which reports also if nothing changed."""
        now = asyncio.get_running_loop().time
        began_s = now()
        try:
            status, _ = await self._get(replica, "/health")
            if status >= 500 and status != HTTPStatus.NOT_IMPLEMENTED:
                raise aiohttp.ClientError(f"/health answered {status}")
            facts = await self._learn(replica, 200 if status == _TEXT else status)  # some say "OK"
        except (aiohttp.ClientError, OSError, TimeoutError, _Unusable, _NoEngine) as error:
            if self._replicas.get(replica.id) is not replica:
                return
            cause = error.__cause__ or error
            if isinstance(error, aiohttp.ClientConnectorDNSError):
                cause = lookup_error(error.os_error)
            if (kind := local_kind(cause)) is not None:
                # It proves nothing of the replica; what was known stays.
                replica.local_faults.saw(kind, now=now())
                if replica.id not in self._facts:
                    self._on_down(replica.id, _describe(error, self._config.health_timeout_s))
                return
            if isinstance(error, TimeoutError) and replica.local_faults.lost_s(began_s, now=now()):
                self.check_now(replica.id)  # it was we who took so long
                return
            failures = self._failures[replica.id] = self._failures.get(replica.id, 0) + 1
            is_clear = isinstance(error, aiohttp.ClientConnectorError) or replica.id not in self._facts
            if is_clear or failures >= self._config.failures_until_down:
                self._facts.pop(replica.id, None)
                self._models.pop(replica.id, None)
                self._on_down(replica.id, _describe(error, self._config.health_timeout_s))
            return
        if self._replicas.get(replica.id) is not replica:
            return
        self._failures[replica.id] = 0
        is_answer = is_wanted and not self._wake[replica.id].is_set()  # else one that begins later is
        if is_answer or self._facts.get(replica.id) != facts:
            self._facts[replica.id] = facts
            self._on_up(facts)

    async def _learn(self, replica: Replica, health: int) -> ReplicaFacts:
        known = self._facts.get(replica.id)
        status, listing = await self._get(replica, "/v1/models")
        await self._doubt(replica, health, status)
        if known is None and status in _REFUSED and replica.api_key is None:
            do = f"/v1/models answers {status}: set its `api_key_env`, unless clients bring keys of their own"
            log_event(logging.WARNING, "replica_wants_key", replica=replica.id, cause=do)
        abilities = known.abilities if known is not None else await self._learn_abilities(replica)
        data = listing.get("data") if status == 200 and isinstance(listing, dict) else None
        models = [m for m in data if _is_model(m)] if isinstance(data, list) else []
        self._models[replica.id] = models
        names = tuple(model["id"] for model in models)
        adapters = tuple(model["id"] for model in models if isinstance(model.get("parent"), str))
        return ReplicaFacts(
            id=replica.id, pool=replica.pool, abilities=abilities, models=names, adapters=adapters
        )

    async def _doubt(self, replica: Replica, health: int, models: int) -> None:
        """Raises `_NoEngine` where an answer comes from something else."""
        refused = _REFUSED if replica.api_key is not None else frozenset[int]()
        nothing = _NOTHING | refused
        if models not in refused | {*_NO_JSON} and not {health, models} <= nothing | {405}:
            return
        has_pages = _HTML in (health, models)
        for path in _SERVED:
            if (await self._get(replica, path))[0] not in nothing:
                return
            options = (await self._get(replica, path, "OPTIONS"))[0]  # some say 404 to other GETs
            is_known = options < 300 or options == 405
            is_clear = 0 < options < 300 and not has_pages
            if is_clear or (is_known and options != (await self._get(replica, _NOWHERE, "OPTIONS"))[0]):
                return
        if health < 0 or models < 0:
            do = "an OpenAI API answers JSON: is this the address of a web page, and the engine's another?"
        elif {health, models} & refused:
            do = "is the API key that the gateway has for it the right one?"
        elif {health, models} & _REDIRECTS:
            do = "give the URL that it redirects to"
        else:
            do = "is its URL that of the server's root, without the path of an endpoint?"
        health_, models_ = (_NO_JSON.get(each, each) for each in (health, models))
        statuses = f"{health_} at /health, {models_} at /v1/models"
        raise _NoEngine(f"{NO_ENGINE} ({statuses}): {do}")

    async def _learn_abilities(self, replica: Replica) -> Abilities:
        status, answer = await self._get(replica, "/version")
        version = answer.get("version") if status == 200 and isinstance(answer, dict) else None
        if not isinstance(version, str):
            return Abilities()
        has_plugin = False
        # It need not know the path.
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, _Unusable):
            status, answer = await self._get(replica, "/turnpike/kv")
            has_plugin = (
                status == 200 and isinstance(answer, dict) and answer.get("state") not in _NOT_FOLLOWED
            )
            if has_plugin:
                _, reply = await self._get(replica, "/turnpike/key")
                key = reply.get("key") if isinstance(reply, dict) else None
                replica.hint_key = key if isinstance(key, str) else None
        return msgspec.structs.replace(vllm_abilities(version), turnpike_hints=has_plugin)

    async def _get(self, replica: Replica, path: str, method: str = "GET") -> tuple[int, Any]:
        if self._session is None:
            self._session = open_session(self._config.health_timeout_s)
        late = asyncio.get_running_loop().call_later(_LATE_S, self._is_late, replica)
        try:
            async with replica.ask(self._session, method, path) as response:
                status, body = response.status, await read_at_most(response.content, _MAX_BYTES)
                if status == 405 and method == "OPTIONS" and "POST" in response.headers.get("Allow", ""):
                    status = _POST
        finally:
            late.cancel()
        if body is None:
            raise _Unusable(f"{path} answers with more than {_MAX_BYTES} bytes")
        try:
            return status, _read(body)
        except RecursionError:
            raise _Unusable(f"{path} answers with JSON that is nested too deeply") from None
        except ValueError:
            body = body.removeprefix(codecs.BOM_UTF8).lstrip()
            is_page = body and 200 <= status < 300
            return (_HTML if body[:1] == b"<" else _TEXT) if is_page else status, None

    def _is_late(self, replica: Replica) -> None:
        if replica.id not in self._facts and self._replicas.get(replica.id) is replica:
            self._on_late(replica.id, f"no answer for {_LATE_S:g} s")


def _read(body: bytes) -> Any:
    """Also what Python writes beyond JSON, or in another coding. Raises ValueError, RecursionError."""
    try:
        return msgspec.json.decode(body)
    except ValueError:
        return json.loads(body.decode(json.detect_encoding(body), "replace"))


def _is_model(listed: object) -> bool:
    name = listed.get("id") if isinstance(listed, dict) else None
    return isinstance(name, str) and len(name) <= _MAX_NAME and not _HALVES.search(name)


def vllm_abilities(version: str) -> Abilities:
    """What a vLLM of this version understands. An unreadable version means nothing beyond the basics."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    release = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    return Abilities(
        engine="vllm",
        version=version[:64],
        session_header=release >= (0, 28),
        kv_hints=release >= (0, 31),
    )


# By OpenSSL's number (X509_V_ERR_CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH).
_CERTIFICATE_FAULTS: Final = {
    10: "certificate has expired",
    62: "certificate is of another name: set upstream.tls_server_name",
    64: "certificate is of another address: set upstream.tls_server_name",
}


def _describe(error: BaseException, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer for {timeout_s:g} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, ssl.SSLCertVerificationError):
        # The library's own words may have the address.
        return _CERTIFICATE_FAULTS.get(error.verify_code, "certificate not trusted: set upstream.ca_file")
    if isinstance(error, ssl.SSLError):  # its `errno` is none of the system's
        return f"TLS failed ({(error.reason or 'unknown').lower().replace('_', ' ')}): does it speak https?"
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError):
        return "it closed the connection without an answer: does it speak HTTP, and without TLS?"
    if isinstance(error, OSError):
        if error.errno and not isinstance(error, socket.gaierror):
            return os.strerror(error.errno)
        return error.strerror or type(error).__name__
    if isinstance(error, aiohttp.ClientResponseError):  # its text has the URL
        return error.message.partition("\n")[0].rstrip(":") or type(error).__name__
    return str(error) or type(error).__name__
