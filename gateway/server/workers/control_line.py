"""The line to a gateway's control plane: a worker's on this machine, or another machine's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Final, NamedTuple

import aiohttp

_ASK_S: Final = 5.0
_HOP_BY_HOP: Final = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length")
)
_NOT_ADDED: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
UNREACHABLE: Final = (aiohttp.ClientError, OSError, TimeoutError, RuntimeError)
"""What asking raises; RuntimeError once the line is closed."""


class Answer(NamedTuple):
    """Of a control plane."""

    status: int
    headers: dict[str, str]
    body: bytes


class ControlLine:
    """Passes on what a caller sends as it is. `serial` is nobody else's; `number` may be another's later."""

    def __init__(self, url: str, connector: aiohttp.BaseConnector, *, number: int, serial: int) -> None:
        """`url`: without a path."""
        self.number = number
        self.serial = serial
        self.last_metrics = b""
        """As far as they are known."""
        self.seen_at = float("-inf")
        """When it was last known to answer; time of the event loop."""
        self._url = url
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )

    async def close(self) -> None:
        await self._session.close()

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        timeout_s: float | None = _ASK_S,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """For whoever reads the answer bit by bit. Raises what `ask` makes None of."""
        async with self._session.request(
            method,
            self._url + path,
            headers=end_to_end(headers or {}),
            data=body,
            allow_redirects=False,
            skip_auto_headers=_NOT_ADDED,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            yield response

    async def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        timeout_s: float = _ASK_S,
    ) -> Answer | None:
        """None if it does not answer."""
        try:
            async with self.request(method, path, headers, body, timeout_s=timeout_s) as response:
                answer = Answer(response.status, end_to_end(response.headers), await response.read())
        except UNREACHABLE:
            return None
        self.seen_at = asyncio.get_running_loop().time()
        return answer


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
