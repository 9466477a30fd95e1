"""What gateways tell one another without the store, over their own listeners; and what each heard lately,
whichever way.

Invariants: what was heard counts for a second; a gateway that does not answer holds nobody up for longer than
half of one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec

from gateway.upstream.replica import open_session

PATH: Final = "/turnpike/peer"
LASTS_S: Final = 1.0
_KEPT_S: Final = 10.0
_EVERY_S: Final = 0.25
"""A gateway asks all others, so this is less often than the store is asked."""
_WITHIN_S: Final = 0.5


class DirectTalk:
    def __init__(self, origin: str, now: Callable[[], float]) -> None:
        self._origin = origin
        self._now = now
        self._told_s = float("-inf")
        self._heard: dict[str, tuple[float, bytes]] = {}
        """What others said last, and when; older than `LASTS_S` it is kept to be known again."""
        self._session: aiohttp.ClientSession | None = None

    def say(self, told: bytes) -> bytes:
        return _encode((self._origin, told))

    def hear(self, body: bytes) -> None:
        """What another one says directly."""
        with contextlib.suppress(msgspec.MsgspecError):  # another version of us
            self.hear_of(*_DECODER.decode(body))

    def hear_of(self, origin: str, told: bytes) -> None:
        """What was heard before is no news."""
        if origin not in self._heard or self._heard[origin][1] != told:
            self._heard[origin] = (self._now(), told)

    def lately_heard(self) -> dict[str, bytes]:
        now = self._now()
        self._heard = {name: each for name, each in self._heard.items() if now - each[0] < _KEPT_S}
        return {name: told for name, (at_s, told) in self._heard.items() if now - at_s < LASTS_S}

    async def tell(self, urls: Iterable[str], told: bytes, headers: dict[str, str]) -> None:
        """Tells those who listen there, and hears what they answer; not more often than it should."""
        now = self._now()
        if now - self._told_s < _EVERY_S:
            return
        self._told_s = now
        if self._session is None:
            self._session = open_session(_WITHIN_S)
        session, body = self._session, self.say(told)
        await asyncio.gather(*(self._tell_one(session, url, body, headers) for url in urls))

    async def _tell_one(
        self, session: aiohttp.ClientSession, url: str, body: bytes, headers: dict[str, str]
    ) -> None:
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
            async with session.post(url + PATH, data=body, headers=headers) as response:
                if response.status == HTTPStatus.OK:
                    self.hear(await response.read())

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


_encode: Final = msgspec.msgpack.encode
_DECODER: Final = msgspec.msgpack.Decoder(tuple[str, bytes])
