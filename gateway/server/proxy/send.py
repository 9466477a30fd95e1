"""Sent: to the replica of each decision, until one begins to respond or the client is refused."""

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec

from gateway.config.server import ServerConfig
from gateway.core import refusals
from gateway.core.commands import Dispatch, Refuse, RemotePrefill
from gateway.domain.ids import ReplicaId
from gateway.domain.request import Answer
from gateway.server.disaggregation.kv_fetches import Fetch
from gateway.server.disaggregation.remote_prefills import RemotePrefills
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.request_head import RequestHead
from gateway.server.http.request_parser import HttpRequest
from gateway.server.proxy.decision_headers import receipts
from gateway.server.proxy.driver import Driver
from gateway.server.proxy.internal_responses import read_whole
from gateway.server.proxy.open_ticket import Tickets
from gateway.server.proxy.prepare import Prepared
from gateway.server.proxy.queue_keepalive import QueueKeepAlive
from gateway.server.proxy.ticket import Ticket
from gateway.server.proxy.upstream_request import Outbound
from gateway.telemetry.histograms import Histogram
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerTimedOut, ConnectFailed, ConnectTimedOut, LocalFault, UpstreamError
from gateway.upstream.health_probes import HealthChecks
from gateway.upstream.replica import Replica
from gateway.wire.endpoints import classify, meant
from gateway.wire.handshake import key_of

# Of the body of a 404: what servers say of paths, and not of models or stored things.
_NO_SUCH_PATH: Final = re.compile(
    rb"\s*(?:404:? ?)?(?:(?:page )?not found)?\.?\s*|<.*|"
    rb'[^}]*"(?:detail|message|error)": ?"(?:file )?not found\.?".*',
    re.I | re.S,
).fullmatch
# From the head of an error to its end, where it has to be read before it is passed on.
_ERROR_WITHIN_S: Final = 5.0
_MISSING: Final = 404


class Begun(msgspec.Struct):
    """A response that has begun."""

    decision: Dispatch
    replica: Replica
    upstream: UpstreamConnection
    receipts: bytes
    """Header lines for the client."""
    keepalive: QueueKeepAlive | None


class UpstreamSender(msgspec.Struct):
    driver: Driver
    replicas: Mapping[ReplicaId, Replica]
    health: HealthChecks
    outbound: Outbound
    tickets: Tickets
    server: ServerConfig
    remote_prefills: RemotePrefills | None
    """None if each prompt is computed where it is decoded."""
    overhead: Histogram | None
    """The time until a request is sent, of some."""

    async def send(self, ticket: Ticket, client: ClientConnection, prepared: Prepared) -> Begun | None:
        """None if the client was refused."""
        request = prepared.request
        keepalive: QueueKeepAlive | None = None
        fetch: Fetch | None = None
        try:
            while True:
                decision = ticket.decided()
                if decision is None:
                    if keepalive is None and ticket.facts.takes_keep_alives:
                        keepalive = QueueKeepAlive(client, ticket, request.head, self.server)
                        request = _uncompressed(request)
                    decision = await ticket.decision()
                if type(decision) is RemotePrefill:
                    assert self.remote_prefills is not None
                    ticket.began_s = 0.0  # what the prefill takes is no overhead
                    trace = self.tickets.trace(ticket, decision.session)
                    fetch = await self.remote_prefills.run(ticket, decision, request, trace)
                    continue
                lines = receipts(decision) if self.server.has_receipts else b""
                if type(decision) is Refuse:
                    _refuse(client, ticket, decision, lines, keepalive)
                    return None
                replica = self.replicas.get(decision.placement.replica)
                if replica is None:  # it left after the brain had decided
                    ticket.attempt_failed(ConnectFailed("the replica left"))
                    continue
                if fetch is not None and self.driver.clock() >= fetch.until_s:
                    fetch = None
                upstream = await self._attempt(ticket, decision, replica, request, fetch)
                fetch = None  # of one attempt alone
                if upstream is None:
                    continue
                begun = Begun(decision, replica, upstream, lines, keepalive)
                status = upstream.head.status if upstream.head is not None else None
                if status == _MISSING and self._is_unknown_path(ticket, client, begun, request.head):
                    return None
                return begun
        finally:
            if keepalive is not None:
                keepalive.end()

    async def _attempt(
        self, ticket: Ticket, decision: Dispatch, replica: Replica, request: HttpRequest, fetch: Fetch | None
    ) -> UpstreamConnection | None:
        """None if no response head came; the brain knows then."""
        head, facts, session = request.head, ticket.facts, decision.session
        trace = self.tickets.trace(ticket, session.session if session is not None else None)
        chunks_with = partial(self.outbound.of_turn, decision, request, facts, replica, trace=trace)
        fields = fetch.fields if fetch is not None else None
        exchange = partial(
            replica.exchange,
            is_head_request=head.method == "HEAD",
            websocket_key=key_of(head.headers) if head.is_websocket else None,
            may_repeat=facts.is_replayable and decision.attempt == 1 and not fields,
        )
        chunks = chunks_with(fetch=fields)
        ticket.fetch = fetch
        if ticket.began_s and self.overhead is not None and not decision.waited_s:
            self.overhead.add(self.driver.clock() - ticket.began_s)
            ticket.began_s = 0.0
        try:
            upstream = await exchange(chunks)
            if fetch is not None and fetch.has_failed(upstream) and facts.is_replayable:
                ticket.fetch = None
                replica.release(upstream, reuse=False)
                upstream = await exchange(chunks_with())
            if upstream.head is not None and upstream.head.status == _MISSING:
                if meant(head.method, head.caller.path) is not None:
                    await self._read_error(replica, upstream)
            return upstream
        except UpstreamError as error:
            if isinstance(error, ConnectFailed) and not isinstance(error, ConnectTimedOut):
                self.health.suspect(replica.id, str(error))
            elif not isinstance(error, LocalFault | AnswerTimedOut):
                self.health.check_now(replica.id)
            ticket.attempt_failed(error)
            return None

    def _is_unknown_path(
        self, ticket: Ticket, client: ClientConnection, begun: Begun, head: RequestHead
    ) -> bool:
        """Of a 404, whether the replica has no such path, which the client is answered with the path that it
        meant. A replica that lacks an adapter which it listed is looked at anew."""
        replica, upstream = begun.replica, begun.upstream
        state = self.driver.coordinator.fleet.get(replica.id)
        if state is not None and (begun.decision.model or ticket.facts.model) in state.facts.adapters:
            self.health.check_now(replica.id)
        path = meant(head.method, head.caller.path)
        if path is None or not _NO_SUCH_PATH(b"".join(upstream.take_complete_body() or ())):
            return False
        refusal = refusals.unknown_path(head.caller.path, path)
        client.refuse(classify(head.method, path).protocol, refusal, begun.receipts)
        ticket.answered_at_once(Answer(status=_MISSING), has_first_token=False)
        replica.release(upstream, reuse=True)
        return True

    async def _read_error(self, replica: Replica, upstream: UpstreamConnection) -> bytes:
        """The body of an error. It is there to be passed on then."""
        timer = asyncio.get_running_loop().call_later(_ERROR_WITHIN_S, upstream.give_up_on_rest)
        try:
            return await read_whole(upstream)
        except BaseException:
            replica.release(upstream, reuse=False)
            raise
        finally:
            timer.cancel()


def _refuse(
    client: ClientConnection, ticket: Ticket, decision: Refuse, lines: bytes, keepalive: QueueKeepAlive | None
) -> None:
    if keepalive is not None and keepalive.has_begun:
        client.has_failed = True
        keepalive.refuse(decision.refusal)
    else:
        client.refuse(ticket.facts.protocol, decision.refusal, lines)


def _uncompressed(request: HttpRequest) -> HttpRequest:
    """Keep-alives go before the response's body, so it may not come compressed."""
    fields = [field for field in request.head.headers if field[0].lower() != b"accept-encoding"]
    fields.append((b"Accept-Encoding", b"identity"))
    head = msgspec.structs.replace(request.head, headers=fields, passed_on={})
    return HttpRequest(head, request.body, request.before)
