"""Questions about what is over, passed on to `turnpike history`.

Bytes go through as they are: at most `_AT_ONCE` questions at a time, at most `_MAX_BYTES` of each answer.
Whoever comes while that many run is refused, so a client that asks in a loop takes no more of the gateway's
loop than a few small answers do.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import aiohttp
from aiohttp import web
from yarl import URL

from gateway.config.load import read_api_key
from gateway.config.telemetry import HistoryConfig
from gateway.upstream.bounded_answers import read_at_most

_AT_ONCE: Final = 4
_MAX_BYTES: Final = 16 << 20


class HistoryProxy:
    def __init__(self, config: HistoryConfig, environ: Mapping[str, str]) -> None:
        """Raises ConfigError for a variable that is not there."""
        self._url = config.url.rstrip("/") if config.url is not None else None
        self._timeout = aiohttp.ClientTimeout(total=config.timeout_s)
        key = read_api_key(config.key_env, None, environ, named="history.key_env")
        self._headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    @property
    def is_configured(self) -> bool:
        return self._url is not None

    async def fetch(self, path: str) -> web.Response:
        """`path`: with its query, as it came. 503 without an answer."""
        if self._slots.locked():
            return _unavailable("too many questions at a time for the history")
        async with self._slots:
            try:
                return await self._fetch(path)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                return _unavailable(f"the history does not answer: {str(error) or type(error).__name__}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _fetch(self, path: str) -> web.Response:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=self._timeout, headers=self._headers, cookie_jar=aiohttp.DummyCookieJar()
            )
        url = URL(f"{self._url}{path}", encoded=True)
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status not in (200, 400, 404):
                return _unavailable(f"the history answers {response.status}")
            body = await read_at_most(response.content, _MAX_BYTES)
            if body is None:
                return _unavailable("the history's answer is too long")
        return web.Response(
            status=response.status,
            body=body,
            content_type="application/json",
            headers={"Cache-Control": "no-store"},
        )


def _unavailable(why: str) -> web.Response:
    return web.json_response({"error": why}, status=503, headers={"Retry-After": "1"})
