"""What gateways announce of themselves, in the store and over their own listeners, and whom to believe.

An announcement is sealed with the fleet's secret under its gateway's origin, which each start draws anew. It
carries a number that grows: what is not greater than the one known is no news, and a gateway without news is
gone after a second, by the clock of who listens. So an old announcement that somebody puts back counts for
nothing where its gateway was known. Where it was not, it counts for nothing either until who listens at its
URL has answered a question that nobody asked before, sealed with the secret.

Invariants: what was heard counts for a second; a gateway that does not answer holds nobody up for longer than
half of one; nobody is asked where nothing may be sent (`peer_client.py`), or where a redirect leads; of an
answer no more is read than a gateway has to say.
"""

import asyncio
import contextlib
import secrets
import socket
import ssl
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

from gateway.domain.ids import ReplicaId
from gateway.domain.shares import Share
from gateway.server.cluster.peer_auth import PASSED, PATH, Passing
from gateway.server.cluster.peer_client import PeerLinks
from gateway.shared_state.fleet_secret import Seal
from gateway.upstream.bounded_answers import read_at_most
from gateway.upstream.replica import open_session

LASTS_S: Final = 1.0
_KEPT_S: Final = 10.0
_EVERY_S: Final = 0.25
"""A gateway asks all others, so this is less often than the store is asked."""
_WITHIN_S: Final = 0.5
_MAX_BYTES: Final = 1 << 20
_STALLED_S: Final = 0.1
"""An answer that comes so much later than it may was waited for by a loop that stood still."""


class PeerHeartbeat(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway says of itself."""

    url: str
    is_busy: bool
    is_leaving: bool
    share: Share
    dead: tuple[ReplicaId, ...] = ()
    """Replicas that do not answer it, or fail or delay what it sends."""
    number: int = 0
    """Of what it said, and growing: what is older, or only stands there still, is no news."""
    twins: tuple[int, ...] = ()
    """Names of what it and another gateway gave, of the last second."""
    picks_at: str = ""
    """HOST:PORT where a picker takes streams that are passed on."""


class _Message(msgspec.Struct, frozen=True, array_like=True):
    origin: str
    announced: bytes
    nonce: bytes
    """In a question: to be answered. In an answer: that of the question, sealed."""


class DirectTalk:
    def __init__(
        self,
        origin: str,
        secret: bytes,
        now: Callable[[], float],
        *,
        passing: Passing,
        links: PeerLinks,
        tls: ssl.SSLContext | None,
        server_name: str | None,
    ) -> None:
        self._origin = origin
        self._announcements, self._answers = Seal(secret, "announcements"), Seal(secret, "answers")
        self._now = now
        self._passing = passing
        self._links = links
        self._tls, self._server_name = tls, server_name
        self._told_s = float("-inf")
        self._heard: dict[str, tuple[float, PeerHeartbeat]] = {}
        """What others announced last, and when; older than `LASTS_S` it is kept to be known again."""
        self._proven: dict[str, str] = {}
        """By origin, the URL where its gateway answered."""
        self._session: aiohttp.ClientSession | None = None

    def announce(self, told: PeerHeartbeat) -> bytes:
        return self._announcements.put(self._origin.encode(), _encode(told))

    def record_peer(self, origin: str, announced: bytes) -> None:
        body = self._announcements.take(origin.encode(), announced)
        if body is None or origin == self._origin:
            return
        with contextlib.suppress(msgspec.MsgspecError):  # another version of us
            told = _TOLD.decode(body)
            known = self._heard.get(origin)
            if known is None or known[1].number < told.number:
                self._heard[origin] = (self._now(), told)

    def lately_heard(self) -> dict[str, PeerHeartbeat]:
        now = self._now()
        self._heard = {name: each for name, each in self._heard.items() if now - each[0] < _KEPT_S}
        self._proven = {name: url for name, url in self._proven.items() if name in self._heard}
        return {name: told for name, told in self._fresh() if self._proven.get(name) == told.url}

    def missed(self, origin: str) -> None:
        """It did not answer: what it announced before counts no more, though it may stand there still."""
        if (known := self._heard.get(origin)) is not None:
            self._heard[origin] = (min(known[0], self._now() - 2 * LASTS_S), known[1])

    def unproven(self) -> dict[str, str]:
        return {name: told.url for name, told in self._fresh() if self._proven.get(name) != told.url}

    def _fresh(self) -> list[tuple[str, PeerHeartbeat]]:
        now = self._now()
        return [(name, told) for name, (at_s, told) in self._heard.items() if now - at_s < LASTS_S]

    def answer(self, body: bytes, announced: bytes) -> bytes:
        try:
            message = _MESSAGE.decode(body)
        except msgspec.MsgspecError:  # another version of us
            return b""
        self.record_peer(message.origin, message.announced)
        return _encode(_Message(self._origin, announced, self._sealed(self._origin, message.nonce)))

    async def tell(self, urls: Mapping[str, str], announced: bytes) -> bool:
        """Tells those who listen there, and hears what they answer; not more often than it should. False if
        this process stood still meanwhile: an answer may wait to be read."""
        began_s = self._now()
        if began_s - self._told_s < _EVERY_S or not urls:
            return True
        self._told_s = began_s
        if self._session is None:
            self._session = open_session(_WITHIN_S, aiohttp.TCPConnector(socket_factory=self._socket))
        listeners = {origin: url for origin, url in urls.items() if self._links.address_of(url) is not None}
        await asyncio.gather(
            *(self._tell_one(self._session, origin, url, announced) for origin, url in listeners.items())
        )
        return self._now() - began_s < _WITHIN_S + _STALLED_S

    def _socket(self, found: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = found
        if not self._links.is_allowed(str(address[0])):
            raise PermissionError(f"nothing is sent to {address[0]} in clear")
        return socket.socket(family, kind, protocol)

    async def _tell_one(
        self, session: aiohttp.ClientSession, origin: str, url: str, announced: bytes
    ) -> None:
        nonce = secrets.token_bytes(16)
        headers = {PASSED.decode(): self._passing.header(origin, "-").decode("ascii")}
        body = _encode(_Message(self._origin, announced, nonce))
        with contextlib.suppress(
            aiohttp.ClientError, OSError, TimeoutError, ValueError, msgspec.MsgspecError
        ):
            async with session.post(
                url + PATH,
                data=body,
                headers=headers,
                ssl=self._tls or True,
                server_hostname=self._server_name if self._tls is not None else None,
                allow_redirects=False,
            ) as response:
                if response.status == HTTPStatus.OK:
                    told = _MESSAGE.decode(await read_at_most(response.content, _MAX_BYTES) or b"")
                    if told.origin == origin and told.nonce == self._sealed(origin, nonce):
                        self._proven[origin] = url
                        self.record_peer(origin, told.announced)

    def _sealed(self, origin: str, nonce: bytes) -> bytes:
        return self._answers.put(origin.encode(), nonce)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


_encode: Final = msgspec.msgpack.encode
_MESSAGE: Final = msgspec.msgpack.Decoder(_Message)
_TOLD: Final = msgspec.msgpack.Decoder(PeerHeartbeat)
