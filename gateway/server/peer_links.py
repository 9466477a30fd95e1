"""The connections to the other gateways, and how a request goes to one of them: as it came, with whose it is.

Invariants: a client cannot claim to be a peer; a request that did not reach one had no effect there.
"""

from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from typing import Final

import msgspec

from gateway.config import Config
from gateway.core import refusals
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.request import RequestFacts
from gateway.server.connection import ClientConnection
from gateway.server.peer_door import INHERITS, PASSED
from gateway.server.relay import framing_of
from gateway.server.request_parser import HttpRequest
from gateway.upstream.errors import AnswerCut, AnswerMissing, UpstreamError
from gateway.upstream.replica import Address, Replica
from gateway.wire.hop_by_hop import end_to_end
from gateway.wire.splice import Chunk

_CONNECT_WITHIN_S: Final = 0.5
BACK: Final = b"x-turnpike-passed: back\r\n"
"""In an answer: the request is not for the one that got it, which did nothing with it."""
PassOn = Callable[[Replica | None, bool], Awaitable[bool]]
"""Passes a request on: to which peer (None: back to the one that it came from), and whether that is the heir
of a gateway that is gone. Whether its client was answered."""
_DROPPED: Final = frozenset((b"content-length", b"expect", PASSED, INHERITS))


class PeerLinks:
    def __init__(self, config: Config, token: Callable[[], str]) -> None:
        """`token`: the secret by which peers know one another."""
        self._token = token
        self._config = msgspec.structs.replace(
            config.upstream,
            connect_timeout_s=_CONNECT_WITHIN_S,
            head_timeout_s=config.upstream.head_timeout_s + config.core.max_held_s,
        )
        self._links: dict[str, Replica] = {}

    def connect(self, origin: str, url: str) -> bool:
        """Whether there can be a connection; it is made when it is needed."""
        known = self._links.get(origin)
        if known is not None and known.address.url == url:
            return True
        try:
            address = Address.parse(url)
        except ValueError:
            return False
        self._links[origin] = Replica(
            ReplicaId(origin), PoolId("gateways"), address, config=self._config, api_key=None, tls=None
        )
        return True

    def keep(self, origins: Collection[str]) -> None:
        """All others are gone."""
        for origin in [each for each in self._links if each not in origins]:
            self._links.pop(origin).close()

    def get(self, origin: str | None) -> Replica | None:
        return self._links.get(origin) if origin is not None else None

    def sweep(self, *, now: float) -> None:
        for link in self._links.values():
            link.sweep(now=now)

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    async def pass_on(
        self,
        client: ClientConnection,
        request: HttpRequest,
        facts: RequestFacts,
        link: Replica | None,
        inherits: bool,
    ) -> bool:
        """Whether the client was answered; if not, nothing of the request had any effect."""
        if link is None:
            client.respond(HTTPStatus.MISDIRECTED_REQUEST, BACK, b"")
            return True
        is_head = request.head.method == "HEAD"
        try:
            upstream = await link.exchange(
                self._chunks(request, inherits=inherits),
                is_head_request=is_head,
                may_repeat=facts.is_replayable,
            )
        except AnswerMissing:
            if facts.is_replayable:
                return False
            client.refuse(facts.protocol, refusals.internal())
            return True
        except UpstreamError:
            return False
        is_reusable = False
        try:
            head = upstream.head
            assert head is not None
            if head.status == HTTPStatus.MISDIRECTED_REQUEST and BACK in head.start:
                return False
            client.start_response(head.start, framing_of(head, request.head))
            client.follow(upstream)
            upstream.set_sink(client.write)
            client.flush_head()
            await upstream.done
            is_reusable = True
        except AnswerCut:
            client.abort()
        finally:
            client.follow(None)
            link.release(upstream, reuse=is_reusable)
        return True

    def _chunks(self, request: HttpRequest, *, inherits: bool) -> list[Chunk]:
        head = request.head
        lines = [b"%s %s HTTP/1.1\r\n" % (head.method.encode("ascii"), head.target)]
        lines += [b"%s: %s\r\n" % field for field in end_to_end(head.headers, _DROPPED)]
        client = head.visitor.client.encode("ascii")
        lines.append(b"%s: %s %s\r\n" % (PASSED, self._token().encode("ascii"), client))
        if inherits:
            lines.append(b"%s: 1\r\n" % INHERITS)
        lines.append(b"Content-Length: %d\r\n\r\n" % len(request.body))
        return [b"".join(lines), request.body] if request.body else [b"".join(lines)]
