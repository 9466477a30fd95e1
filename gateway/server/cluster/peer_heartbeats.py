"""Heartbeats of gateways, in the store and over their own listeners, and which of them are trusted.

A heartbeat is sealed with the fleet's secret under its gateway's origin, which each start draws anew. Its
number grows: one that is not greater than the last is ignored, and a gateway without a new one is gone after
a second, by the receiver's clock. So a replayed heartbeat counts for nothing where its gateway was known. Of
an unknown gateway it counts only after the listener at its URL has answered a fresh nonce, sealed with the
secret.

Invariants: a heartbeat counts for a second; a gateway that does not answer delays no other for longer than
half of one; nothing is sent where `peer_client.py` forbids it, or where a redirect leads; of an answer at
most `_MAX_BYTES` are read.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

from gateway.domain.ids import ReplicaId
from gateway.domain.shares import Share
from gateway.server.cluster.peer_auth import PASSED, PATH
from gateway.server.cluster.peer_client import PeerLinks
from gateway.shared_state.fleet_secret import Seal
from gateway.upstream.bounded_answers import read_at_most
from gateway.upstream.replica import open_session

LASTS_S: Final = 1.0
_KEPT_S: Final = 10.0
# Each gateway sends to all others, so this is less often than an exchange with the store.
_EVERY_S: Final = 0.25
_WITHIN_S: Final = 0.5
_MAX_BYTES: Final = 1 << 20
# The event loop stood still if an answer comes so much later than the time limit.
_STALLED_S: Final = 0.1


class PeerHeartbeat(msgspec.Struct, frozen=True, array_like=True):
    url: str
    is_busy: bool
    is_leaving: bool
    share: Share
    dead: tuple[ReplicaId, ...] = ()
    """Replicas that do not answer it, or fail or delay what it sends."""
    number: int = 0
    """Grows with each heartbeat: an older or equal one is ignored."""
    twins: tuple[int, ...] = ()
    """Names of what it and another gateway gave, of the last second."""
    picks_at: str = ""
    """HOST:PORT where a picker takes streams that are passed on."""


class _Message(msgspec.Struct, frozen=True, array_like=True):
    origin: str
    announced: bytes
    nonce: bytes
    """In a request: a fresh one. In an answer: that of the request, sealed."""


class DirectTalk:
    def __init__(self, origin: str, secret: bytes, now: Callable[[], float], links: PeerLinks) -> None:
        self._origin = origin
        self._announcements, self._answers = Seal(secret, "announcements"), Seal(secret, "answers")
        self._now = now
        self._links = links
        self._sent_s = float("-inf")
        # The newest of each, and when it came; older than `LASTS_S` it is kept against replays.
        self._received: dict[str, tuple[float, PeerHeartbeat]] = {}
        # By origin, the URL where its gateway answered.
        self._proven: dict[str, str] = {}
        self._session: aiohttp.ClientSession | None = None

    def announce(self, heartbeat: PeerHeartbeat) -> bytes:
        return self._announcements.put(self._origin.encode(), _encode(heartbeat))

    def record_peer(self, origin: str, announced: bytes) -> None:
        body = self._announcements.take(origin.encode(), announced)
        if body is None or origin == self._origin:
            return
        with contextlib.suppress(msgspec.MsgspecError):  # another version of us
            heartbeat = _HEARTBEAT.decode(body)
            known = self._received.get(origin)
            if known is None or known[1].number < heartbeat.number:
                self._received[origin] = (self._now(), heartbeat)

    def recent(self) -> dict[str, PeerHeartbeat]:
        now = self._now()
        self._received = {name: each for name, each in self._received.items() if now - each[0] < _KEPT_S}
        self._proven = {name: url for name, url in self._proven.items() if name in self._received}
        return self._fresh(is_proven=True)

    def missed(self, origin: str) -> None:
        """It did not answer: its last heartbeat no longer counts, though the store may still have it."""
        if (known := self._received.get(origin)) is not None:
            self._received[origin] = (min(known[0], self._now() - 2 * LASTS_S), known[1])

    def unproven(self) -> dict[str, str]:
        return {name: heartbeat.url for name, heartbeat in self._fresh(is_proven=False).items()}

    def _fresh(self, *, is_proven: bool) -> dict[str, PeerHeartbeat]:
        now = self._now()
        return {
            name: heartbeat
            for name, (at_s, heartbeat) in self._received.items()
            if now - at_s < LASTS_S and (self._proven.get(name) == heartbeat.url) is is_proven
        }

    def answer(self, body: bytes, announced: bytes) -> bytes:
        try:
            message = _MESSAGE.decode(body)
        except msgspec.MsgspecError:  # another version of us
            return b""
        self.record_peer(message.origin, message.announced)
        return _encode(_Message(self._origin, announced, self._sealed(self._origin, message.nonce)))

    async def exchange(self, urls: Mapping[str, str], announced: bytes) -> bool:
        """Sends the heartbeat to all `urls` and records the answers, at most once in `_EVERY_S`. False if
        this process stood still meanwhile: an answer may wait to be read."""
        began_s = self._now()
        if began_s - self._sent_s < _EVERY_S or not urls:
            return True
        self._sent_s = began_s
        if self._session is None:
            self._session = open_session(_WITHIN_S, aiohttp.TCPConnector(socket_factory=self._socket))
        listeners = {origin: url for origin, url in urls.items() if self._links.address_of(url) is not None}
        await asyncio.gather(
            *(self._exchange_with(self._session, origin, url, announced) for origin, url in listeners.items())
        )
        return self._now() - began_s < _WITHIN_S + _STALLED_S

    def _socket(self, found: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = found
        if not self._links.is_allowed(str(address[0])):
            raise PermissionError(f"nothing is sent to {address[0]} in clear")
        return socket.socket(family, kind, protocol)

    async def _exchange_with(
        self, session: aiohttp.ClientSession, origin: str, url: str, announced: bytes
    ) -> None:
        nonce = secrets.token_bytes(16)
        headers = {PASSED.decode(): self._links.passing.header(origin, "-").decode("ascii")}
        body = _encode(_Message(self._origin, announced, nonce))
        with contextlib.suppress(
            aiohttp.ClientError, OSError, TimeoutError, ValueError, msgspec.MsgspecError
        ):
            async with session.post(
                url + PATH,
                data=body,
                headers=headers,
                ssl=self._links.tls or True,
                server_hostname=self._links.server_name,
                allow_redirects=False,
            ) as response:
                if response.status == HTTPStatus.OK:
                    message = _MESSAGE.decode(await read_at_most(response.content, _MAX_BYTES) or b"")
                    if message.origin == origin and message.nonce == self._sealed(origin, nonce):
                        self._proven[origin] = url
                        self.record_peer(origin, message.announced)

    def _sealed(self, origin: str, nonce: bytes) -> bytes:
        return self._answers.put(origin.encode(), nonce)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


_encode: Final = msgspec.msgpack.encode
_MESSAGE: Final = msgspec.msgpack.Decoder(_Message)
_HEARTBEAT: Final = msgspec.msgpack.Decoder(PeerHeartbeat)
