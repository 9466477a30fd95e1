"""WebSockets, passed on as bytes both ways.

Theory of operation. An opening handshake is a request like any other: authenticated, admitted, placed, sent.
Only if the replica answers 101 do both connections become the ends of a tunnel; any other response is relayed
as one, and before it nothing that the client sent behind its handshake leaves the gateway. Nobody switches to
other protocols: in h2c, for one, requests would pass unseen. While it is open it is one turn of its session.

It ends in one of three ways. (1) Both sides have ended their sending half, each of which is passed on; in TLS
there are no halves: its end is the end. (2) One side is reset, and so is the other. (3) The gateway resets
both: the session is stopped, the key revoked, the drain over; one does not read, or neither sends, for long.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Final
from urllib.parse import unquote_plus

import msgspec

from gateway.config import Config
from gateway.core import events as ev
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import ReplicaId, clean_name
from gateway.domain.request import Answer, Protocol, RequestFacts, Work
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.request_head import RequestHead
from gateway.server.http.request_parser import HttpRequest
from gateway.server.proxy.prepare import Prepared, RequestPreparation
from gateway.server.proxy.send import Begun
from gateway.server.proxy.ticket import Ticket
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerCut
from gateway.upstream.one_shot import OneShot
from gateway.upstream.replica import Replica
from gateway.wire.endpoints import classify
from gateway.wire.headers import RawHeaders, get_header

_NO_NAME: Final = re.compile(r"(?:[0-9.]+|\[[0-9A-Fa-f:.]+\]|localhost)(?::\d+)?")
_SWITCHED: Final = Answer(status=101)
_UPGRADE: Final = b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


class _End(asyncio.Protocol):
    """One side. What it sends goes to the other; it is not read while the other does not read."""

    other: "_End"

    def __init__(self, connection: ClientConnection | UpstreamConnection, tunnel: "Tunnel") -> None:
        self._connection = connection
        self.transport = connection.transport
        self._tunnel = tunnel
        self.has_ended = False
        self.stalled_s = inf

    def send(self, data: bytes) -> None:
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def hold_up(self, *, is_held: bool) -> None:
        if not self.has_ended and not self.transport.is_closing():
            (self.transport.pause_reading if is_held else self.transport.resume_reading)()

    def data_received(self, data: bytes) -> None:
        self._tunnel.used_s = self._tunnel.now()
        self.other.send(data)

    def pause_writing(self) -> None:
        self.stalled_s = self._tunnel.now()
        self.other.hold_up(is_held=True)

    def resume_writing(self) -> None:
        self.stalled_s = inf
        self.other.hold_up(is_held=False)

    def eof_received(self) -> bool:
        self.has_ended = True
        self._tunnel.half_closed(self)
        return self.transport.can_write_eof()  # if it can, it stays open

    def connection_lost(self, exc: Exception | None) -> None:
        if self is self._tunnel.at_replica:
            self._tunnel.replica_lost(exc)
        self._connection.connection_lost(exc)


class Tunnel:
    def __init__(self, client: ClientConnection, upstream: UpstreamConnection) -> None:
        self.now = client.now
        # When a side sent something last.
        self.used_s = self.now()
        self.ending_s = inf
        # Fails with `AnswerCut`. A client that is lost cancels its handler instead.
        self.over = OneShot()
        self.at_client, self.at_replica = _End(client, self), _End(upstream, self)
        self.at_client.other, self.at_replica.other = self.at_replica, self.at_client

    def half_closed(self, end: _End) -> None:
        other = end.other
        if other.has_ended or (other is self.at_replica and not other.transport.can_write_eof()):
            self.at_replica.transport.close()  # whose loss ends the tunnel
        elif not other.transport.can_write_eof():
            self.over.set()
        elif not other.transport.is_closing():
            other.transport.write_eof()

    def replica_lost(self, exc: Exception | None) -> None:
        if exc is None and (self.at_client.has_ended or self.at_replica.has_ended):
            self.over.set()
        else:
            self.over.fail(AnswerCut("the replica closed the connection"))


class Tunnels(msgspec.Struct):
    replicas: Mapping[ReplicaId, Replica]
    preparation: RequestPreparation
    config: Config
    counts: Counter[str]
    """Those that were `opened`, of these `closed`; and those that were `refused`."""

    async def prepare(self, client: ClientConnection, request: HttpRequest) -> Prepared | None:
        """As `RequestPreparation.prepare`. A session that another gateway has goes on here."""
        judged = self._judge(request.head, await self.preparation.reading.read(request))
        if isinstance(judged, Refusal):
            client.refuse(request.head.caller.endpoint.protocol, judged)
            return None
        facts, without = judged
        await self.preparation.is_ours(request, facts, None)
        return Prepared(request, facts, without)

    def _judge(
        self, head: RequestHead, facts: RequestFacts
    ) -> tuple[RequestFacts, tuple[ReplicaId, ...]] | Refusal:
        """What the brain is to know of a handshake, and the replicas that may not have it; or why nobody may.
        `facts`: as of any request."""
        query = head.target.partition(b"?")[2].decode("latin-1")
        named = [unquote_plus(each[6:]) for each in query.split("&") if each.startswith("model=")]
        model = clean_name(named[0]) if named else None
        refusal, without = None, tuple[ReplicaId, ...]()
        if head.caller.endpoint.protocol is Protocol.MCP:
            refusal = "Tool servers are reached by HTTP alone."
        elif not self.preparation.are_keys_required and _may_be_a_page(head.headers):
            # Any page in a browser may open one wherever its reader may, and read what comes.
            refusal = "Pages in browsers may not open WebSockets where no key is required."
        elif classify("POST", head.caller.path).name == "/v1/responses":
            pool, replicas = self.preparation.driver.coordinator.fleet.pool_for(model), self.replicas.values()
            without = tuple(each.id for each in replicas if not each.responses_websocket)
            # Who has a cache of its own gets it by a field that has to be in each message.
            is_served = any(each.pool == pool and each.responses_websocket for each in replicas)
            if self.preparation.is_salted or not is_served:
                refusal = "Responses over WebSocket are not served here: use HTTP."
        if refusal is not None:
            self.counts["refused"] += 1
            return Refusal(reason=RefusalReason.UNSUPPORTED_UPGRADE, message=refusal)
        facts = msgspec.structs.replace(facts, work=Work.TUNNEL, model=model, is_replayable=True)
        return msgspec.structs.replace(facts, is_relayed=self.config.server.is_relay), without

    async def run(self, client: ClientConnection, ticket: Ticket, prepared: Prepared, begun: Begun) -> None:
        """From the replica's 101 to the end."""
        head, replica, upstream = prepared.request.head, begun.replica, begun.upstream
        assert upstream.head is not None
        ticket.send(ev.ResponseStarted(ticket.request, _SWITCHED.status))
        self.counts["opened"] += 1
        try:
            tunnel = Tunnel(client, upstream)
            check = partial(self._check, tunnel, client, head, replica)
            early = client.switch(upstream.head.start + begun.receipts + _UPGRADE, tunnel.at_client, check)
            upstream.transport.set_protocol(tunnel.at_replica)
            tunnel.at_replica.send(early)
            tunnel.at_client.send(upstream.take_rest())
            await tunnel.over
            ticket.finished(_SWITCHED)
        except AnswerCut as cut:
            ticket.cut(_SWITCHED, str(cut))
            client.abort()
        finally:
            self.counts["closed"] += 1
            replica.release(upstream, reuse=False)

    def _check(
        self, tunnel: Tunnel, client: ClientConnection, head: RequestHead, replica: Replica, now: float
    ) -> None:
        config, brain = self.config, self.preparation.driver.coordinator
        state = brain.fleet.get(replica.id)
        is_leaving = self.replicas.get(replica.id) is not replica or state is None or state.is_draining
        must_end = is_leaving or brain.counts_tokens(head.caller.tenant.id)
        tunnel.ending_s = min(tunnel.ending_s, now) if must_end else inf
        if (
            now - tunnel.ending_s > config.server.drain_s
            or now - tunnel.used_s > config.upstream.stall_timeout_s
            or now - tunnel.at_client.stalled_s > config.server.limits.client_stall_s
        ):
            client.abort()
        elif now - tunnel.at_replica.stalled_s > config.upstream.stall_timeout_s:
            tunnel.over.fail(AnswerCut("the replica stopped reading"))


def _may_be_a_page(headers: RawHeaders) -> bool:
    """Of another origin. Some libraries state that of the address they connect to; names lead anywhere."""
    origin, host = get_header(headers, b"origin"), get_header(headers, b"host")
    return origin is not None and not (
        host is not None and _NO_NAME.fullmatch(host) and origin.partition("://")[2] == host
    )
