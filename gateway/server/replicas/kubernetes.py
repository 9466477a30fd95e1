"""Discovery in Kubernetes: the endpoints of a service, by list and watch over the API server.

Source: Kubernetes' API concepts, "Efficient detection of changes". A list has the endpoints at a resource
version; a watch from there sends changes, one JSON object a line, until it ends by its own timeout and goes
on from the last version. A version that the server has forgotten (410) means a new list.

While the API server is away, or its answers are unusable, the last snapshot stays. Nothing blocks the event
loop, no answer takes more than `_MAX_PAGE` of memory, and no line of a watch more than `_MAX_LINE`.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from gateway.config.kubernetes import KubernetesConfig
from gateway.fleet.membership import MOST
from gateway.server.replicas.endpoint_slices import (
    EndpointSlice,
    EndpointSliceList,
    EndpointSnapshot,
    Slices,
    Status,
    WatchEvent,
)
from gateway.telemetry.log_lines import ChangeLog
from gateway.upstream.bounded_answers import read_at_most
from gateway.upstream.replica import open_session

OnSnapshot = Callable[[EndpointSnapshot], None]

# Slices of one page.
_PAGE_SLICES: Final = 100
# Bytes. etcd holds no object above 1.5 MiB; JSON is somewhat longer than what it holds.
_MAX_LINE: Final = 4 << 20
# Bytes. A slice of 100 endpoints takes some 50 KiB.
_MAX_PAGE: Final = 32 << 20
_CONNECT_S: Final = 10.0
_LIST_S: Final = 30.0
# For a watch that does not end by its timeout: the connection is gone.
_GRACE_S: Final = 15.0
# A watch that ends sooner than this counts as a failure: the server may be shutting down.
_SHORT_S: Final = 1.0
_FIRST_PAUSE_S: Final = 0.5
# Between attempts while the API server fails, doubling, each drawn from the upper half.
_LONGEST_PAUSE_S: Final = 30.0


class ApiError(Exception):
    """The API server's answer, for a person; never with the request's credentials."""

    def __init__(self, why: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class GoneError(ApiError):
    """It has forgotten this resource version."""


class KubernetesDiscovery:
    """Follows one service for ever. `on_snapshot` is called with each new snapshot."""

    def __init__(self, config: KubernetesConfig, on_snapshot: OnSnapshot, *, rng: random.Random) -> None:
        self._config = config
        self._on_snapshot = on_snapshot
        self._rng = rng
        self._slices = Slices(config.port, config.scheme)
        self._published: EndpointSnapshot | None = None
        self._complaint = ""
        self._failures = 0
        self._log = ChangeLog()
        # Up to which everything is known; empty: nothing is.
        self._version = ""

    async def run(self) -> None:
        while True:
            try:
                async with await self._open() as session:
                    if not self._version:
                        self._version = await self._list(session)
                    while True:
                        await self._watch(session)
                        self._failures = 0
            except GoneError:
                self._version = ""
                await self._pause(0.0)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._complain(error)
                await self._pause(0.0)
            except (ApiError, msgspec.MsgspecError, ValueError, RecursionError) as error:
                self._version = ""  # the answer may be incomplete
                self._complain(error)
                await self._pause(error.retry_after_s if isinstance(error, ApiError) else 0.0)

    async def _open(self) -> aiohttp.ClientSession:
        ca_file, is_tls = self._config.ca_file, self._config.api.startswith("https:")
        tls = await asyncio.to_thread(ssl.create_default_context, cafile=ca_file) if is_tls else True
        return open_session(_LIST_S, aiohttp.TCPConnector(ssl=tls, limit=2))

    async def _list(self, session: aiohttp.ClientSession) -> str:
        found: list[EndpointSlice] = []
        query, version = "", ""
        while True:
            async with self._get(session, f"limit={_PAGE_SLICES}{query}", _LIST_S) as response:
                if (body := await read_at_most(response.content, _MAX_PAGE)) is None:
                    raise ApiError("a list is too large")
            page = msgspec.json.decode(body, type=EndpointSliceList)
            found.extend(page.items or ())
            version = page.metadata.resource_version
            if not page.metadata.continues or len(found) >= MOST:
                break
            query = f"&continue={quote(page.metadata.continues, safe='')}"
        self._slices.replace(found)
        self._publish()
        return version

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        """To its end. Raises GoneError if the server has none of what came since."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        # Spread, so that the watches of many gateways do not all end together.
        lasts_s = self._rng.uniform(1.0, 2.0) * self._config.watch_s
        query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds={max(1, round(lasts_s))}"
        resumed = f"{query}&resourceVersion={quote(self._version, safe='')}"
        async with self._get(session, resumed, lasts_s + _GRACE_S) as response:
            self._complaint = ""
            async for line in _lines(response.content):
                self._version = self._take(msgspec.json.decode(line, type=WatchEvent)) or self._version
                self._failures = 0
        if clock() - began_s < _SHORT_S:
            raise ApiError("a watch ended at once")

    def _take(self, event: WatchEvent) -> str:
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            raise _error(status.code, status.message)
        changed = msgspec.json.decode(event.object, type=EndpointSlice)
        if event.type in ("ADDED", "MODIFIED"):
            self._slices.put(changed)
        elif event.type == "DELETED":
            self._slices.delete(changed.metadata.name)
        self._publish()
        return changed.metadata.resource_version

    def _publish(self) -> None:
        snapshot = self._slices.snapshot()
        if snapshot != self._published:
            self._published = snapshot
            self._on_snapshot(snapshot)

    @asynccontextmanager
    async def _get(
        self, session: aiohttp.ClientSession, query: str, within_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Raises ApiError for any status but 200."""
        config, headers = self._config, {"Accept": "application/json"}
        selector = quote(f"kubernetes.io/service-name={config.service}", safe="")
        path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(config.namespace, safe='')}/endpointslices"
        url = URL(f"{config.api.rstrip('/')}{path}?labelSelector={selector}&{query}", encoded=True)
        timeout = aiohttp.ClientTimeout(total=within_s, sock_connect=_CONNECT_S)
        if config.token_file:
            # Each time: the kubelet writes a new one about every hour.
            token = await asyncio.to_thread(Path(config.token_file).read_text, "ascii")
            headers["Authorization"] = f"Bearer {token.strip()}"
        response = await session.get(url, headers=headers, timeout=timeout, allow_redirects=False)
        try:
            if response.status != HTTPStatus.OK:
                after = response.headers.get("Retry-After", "")
                wait_s = float(after) if after.isdecimal() else 0.0
                raise _error(response.status, "", retry_after_s=wait_s)
            yield response
        finally:
            response.close()

    def _complain(self, error: Exception) -> None:
        why = str(error) or type(error).__name__
        if why != self._complaint:
            self._complaint = why
            name = f"{self._config.namespace}/{self._config.service}"
            self._log.log("api", logging.WARNING, "discovery_failed", service=name, cause=why)

    async def _pause(self, at_least_s: float) -> None:
        longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._failures, 16))
        self._failures += 1
        await asyncio.sleep(max(min(at_least_s, _LONGEST_PAUSE_S), longest_s * self._rng.uniform(0.5, 1.0)))


_MEANINGS: Final = {
    HTTPStatus.UNAUTHORIZED: "the token is not accepted",
    HTTPStatus.FORBIDDEN: "the service account may not list and watch endpointslices",
}


def _error(status: int, message: str, *, retry_after_s: float = 0.0) -> ApiError:
    if status == HTTPStatus.GONE:
        return GoneError("the resource version is too old")
    meaning = _MEANINGS.get(status, message[:200])  # type: ignore[call-overload]
    return ApiError(f"{status}{f': {meaning}' if meaning else ''}", retry_after_s=retry_after_s)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    kept = bytearray()
    async for some in content.iter_any():
        kept += some
        if b"\n" in some:
            *whole, rest = kept.split(b"\n")
            kept = bytearray(rest)
            for line in whole:
                if len(line) > _MAX_LINE:
                    raise ApiError("an object is too large")
                if line.strip():
                    yield bytes(line)
        if len(kept) > _MAX_LINE:
            raise ApiError("an object is too large")
