"""The connections to the other gateways, and how a request goes to one of them: as it came, with whose it is.

Invariants: a client cannot claim to be a peer; a request that did not reach one had no effect there; without
TLS nothing is sent to an address that is neither loopback nor in a network that the operator named.
"""

import logging
import ssl
from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address
from math import inf
from typing import Final

import msgspec

from gateway.config import Config
from gateway.core import refusals
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.request import RequestFacts
from gateway.server.auth.client_address import TrustedProxies
from gateway.server.cluster.peer_auth import INHERITS, PASSED, Passing
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.request_parser import HttpRequest
from gateway.server.proxy.byte_pump import framing_of
from gateway.telemetry.log_lines import log_event
from gateway.upstream.errors import AnswerCut, AnswerMissing, UpstreamError
from gateway.upstream.replica import Address, Replica, Transport
from gateway.wire.hop_by_hop import end_to_end
from gateway.wire.splice import Chunk

_CONNECT_WITHIN_S: Final = 0.5
# In an answer: the request is not for the one that got it, which did nothing with it.
BACK: Final = b"x-turnpike-passed: back\r\n"
# Passes a request on: to which peer (None: back to the one that it came from), and whether that is the heir
# of a gateway that is gone. Whether its client was answered.
PassOn = Callable[[Replica | None, bool], Awaitable[bool]]
_DROPPED: Final = frozenset((b"content-length", b"expect", PASSED, INHERITS))


class PeerLinks:
    def __init__(self, config: Config, passing: Passing, tls: ssl.SSLContext | None) -> None:
        """`tls`: None for gateways that speak in clear."""
        self.passing = passing
        self.tls = tls
        self.server_name = config.shared.peer_tls_server_name if tls is not None else None
        self._named = TrustedProxies(config.shared.peer_plaintext_networks)
        self._keepalive_s = config.server.limits.tcp_keepalive_s
        self._config = msgspec.structs.replace(
            config.upstream,
            connect_timeout_s=_CONNECT_WITHIN_S,
            head_timeout_s=config.upstream.head_timeout_s + config.core.max_stream_wait_s,
            stall_timeout_s=inf,  # a peer cuts its answer itself
            tls_server_name=config.shared.peer_tls_server_name,
        )
        self._links: dict[str, Replica] = {}
        # Of gateways that are gone, or elsewhere by now; their last answers are under way.
        self._left: list[Replica] = []

    def connect(self, origin: str, url: str) -> bool:
        known = self._links.get(origin)
        if known is not None and known.address.url == url:
            return True
        if (address := self.address_of(url)) is None:
            return False
        self._leave(origin)
        self._links[origin] = Replica(
            ReplicaId(origin),
            PoolId("gateways"),
            address,
            config=self._config,
            api_key=None,
            transport=Transport(self.tls, self._keepalive_s, self.is_allowed),
        )
        return True

    def address_of(self, url: str) -> Address | None:
        try:
            address = Address.parse(url)
        except ValueError:
            return None
        if address.is_tls is not (self.tls is not None):
            _warn(url)
            return None
        return address

    def is_allowed(self, address: str) -> bool:
        return (
            self.tls is not None
            or ip_address(address.partition("%")[0]).is_loopback
            or self._named.is_trusted(address)
        )

    def keep(self, origins: Collection[str]) -> None:
        for origin in [each for each in self._links if each not in origins]:
            self._leave(origin)

    def _leave(self, origin: str) -> None:
        if (link := self._links.pop(origin, None)) is not None:
            link.close(lets_answers_end=True)
            self._left.append(link)

    def get(self, origin: str | None) -> Replica | None:
        return self._links.get(origin) if origin is not None else None

    def sweep(self, *, now: float) -> None:
        self._left = [link for link in self._left if link.busy_count]
        for link in self._links.values():
            link.sweep(now=now)

    def close(self) -> None:
        for link in (*self._links.values(), *self._left):
            link.close()

    async def pass_on(
        self,
        client: ClientConnection,
        request: HttpRequest,
        facts: RequestFacts,
        link: Replica | None,
        takes_over_session: bool,
    ) -> bool:
        client.is_logged = False
        if link is None:
            client.respond(HTTPStatus.MISDIRECTED_REQUEST, BACK, b"")
            return True
        is_head = request.head.method == "HEAD"
        try:
            upstream = await link.exchange(
                self._chunks(request, link.id, takes_over_session=takes_over_session),
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
            client.bind_source(upstream)
            upstream.set_sink(client.write)
            client.flush_head()
            await upstream.done
            is_reusable = True
        except AnswerCut:
            client.abort()
        finally:
            client.bind_source(None)
            link.release(upstream, reuse=is_reusable)
        return True

    def _chunks(self, request: HttpRequest, to: str, *, takes_over_session: bool) -> list[Chunk]:
        head = request.head
        lines = [b"%s %s HTTP/1.1\r\n" % (head.method.encode("ascii"), head.target)]
        lines += [b"%s: %s\r\n" % field for field in end_to_end(head.headers, _DROPPED)]
        lines.append(b"%s: %s\r\n" % (PASSED, self.passing.header(to, head.caller.client)))
        if takes_over_session:
            lines.append(b"%s: 1\r\n" % INHERITS)
        lines.append(b"Content-Length: %d\r\n\r\n" % len(request.body))
        return [b"".join(lines), request.body] if request.body else [b"".join(lines)]


@lru_cache(16)  # once for each
def _warn(url: str) -> None:
    log_event(logging.WARNING, "peer_refused", url=url, cause="of it and this one, one alone speaks TLS")
