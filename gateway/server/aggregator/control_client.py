"""A client of a gateway's control plane."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple

import aiohttp

from gateway.upstream.bounded_answers import read_at_most

_MAX_BYTES: Final = 64 << 20
_HOP_BY_HOP: Final = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length")
)
_NOT_ADDED: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
# What asking raises; RuntimeError once the client is closed.
UNREACHABLE: Final = (aiohttp.ClientError, OSError, TimeoutError, RuntimeError)


class Answer(NamedTuple):
    gateway: int
    status: int
    headers: dict[str, str]
    body: bytes


class ControlClient:
    """Passes on what a caller sends as it is."""

    def __init__(self, url: str, *, number: int) -> None:
        """`url`: without a path; `number`: no other gateway's."""
        self.number = number
        self._url = url
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        await self._session.close()

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout_s: float | None,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """For whoever reads the answer bit by bit. Raises what `ask` makes None of."""
        return self._session.request(
            method,
            self._url + path,
            headers=end_to_end(headers),
            data=body,
            allow_redirects=False,
            skip_auto_headers=_NOT_ADDED,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        )

    async def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout_s: float,
    ) -> Answer | None:
        """None if it does not answer, or says too much."""
        try:
            async with self.request(method, path, headers, body, timeout_s=timeout_s) as response:
                body = await read_at_most(response.content, _MAX_BYTES)
                headers = end_to_end(response.headers)
                return Answer(self.number, response.status, headers, body) if body is not None else None
        except UNREACHABLE:
            return None


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
