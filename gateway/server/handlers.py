"""ONE request, from top to bottom.

The door has let it in. What does it say? → Tell the brain, await its decision → send it to that
replica → pass the answer on. Leaving the ticket's `with` block ends the request in the books, however
it is left.
"""

import logging
from collections.abc import Mapping
from urllib.parse import unquote

import msgspec

from gateway.core.commands import Dispatch, Refuse
from gateway.domain.decision import Refusal, RefusalReason, SessionRef, SessionSource
from gateway.domain.ids import ReplicaId
from gateway.domain.request import Protocol, RequestFacts
from gateway.server.connection import ClientConnection
from gateway.server.driver import Driver, Ticket
from gateway.server.outbound import Outbound
from gateway.server.relay import Relay
from gateway.server.request_parser import HttpRequest
from gateway.server.tenants import Tenant
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerMissing, AnswerTimedOut, ConnectFailed, ConnectTimedOut
from gateway.upstream.health import HealthChecks
from gateway.upstream.replica import Replica
from gateway.wire.endpoints import Endpoint
from gateway.wire.facts import read_facts
from gateway.wire.headers import RawHeaders, get_header
from gateway.wire.observer import observe

_log = logging.getLogger(__name__)

_MODELS = "/v1/models/"


class Handlers:
    """Called by every client connection with every request."""

    def __init__(
        self,
        driver: Driver,
        replicas: Mapping[ReplicaId, Replica],
        health: HealthChecks,
        outbound: Outbound,
        *,
        are_keys_required: bool,
        with_receipts: bool,
    ) -> None:
        self._driver = driver
        self._replicas = replicas
        self._health = health
        self._outbound = outbound
        self._are_keys_required = are_keys_required
        self._with_receipts = with_receipts
        self._relays: dict[Relay, tuple[Replica, UpstreamConnection]] = {}

    async def __call__(self, client: ClientConnection, request: HttpRequest) -> None:
        endpoint = request.visitor.endpoint
        try:
            await self._serve(client, request, request.visitor.path, endpoint, request.visitor.tenant)
        except Exception:  # noqa: BLE001 - a bug of ours costs one request, never the process
            _log.exception("a request to %s failed inside the gateway", endpoint.name)
            if client.is_answering:
                client.abort()
            else:
                message = "The gateway failed; the request may be sent again."
                client.refuse(endpoint.protocol, Refusal(reason=RefusalReason.INTERNAL, message=message))

    def sweep(self, now: float) -> None:
        """Cuts responses whose replica has stopped sending; called about once a second."""
        for relay, (replica, upstream) in tuple(self._relays.items()):
            if relay.is_waiting_for_replica and replica.is_stalled(upstream, now=now):
                relay.give_up()

    async def _serve(
        self, client: ClientConnection, request: HttpRequest, path: str, endpoint: Endpoint, tenant: Tenant
    ) -> None:
        is_listing = path.rstrip("/") == "/v1/models" and request.method in ("GET", "HEAD")
        if is_listing and self._health.has_several_pools:
            client.respond(200, [], msgspec.json.encode(self._health.merged_models()))
            return
        facts = read_facts(endpoint, request.headers, request.body)
        if path.startswith(_MODELS):
            facts = msgspec.structs.replace(facts, model=unquote(path.removeprefix(_MODELS)))
        if self._are_keys_required and not facts.is_readable and facts.protocol is Protocol.RESPONSES:
            # Backends read more than we do (NaN, UTF-16): it may name another tenant's response.
            message = "The body could not be read."
            client.refuse(endpoint.protocol, Refusal(reason=RefusalReason.MALFORMED_HTTP, message=message))
            return
        with self._driver.open_ticket(tenant.id, facts) as ticket:
            while True:
                decision = await ticket.decision()
                receipts = self._receipts(decision)
                if isinstance(decision, Refuse):
                    client.refuse(endpoint.protocol, decision.refusal, receipts)
                    return
                replica = self._replicas[decision.placement.replica]
                upstream = await self._attempt(ticket, decision, replica, request, endpoint, tenant, facts)
                if upstream is not None:
                    break
            await self._pass_on(client, request, endpoint, ticket, replica, upstream, receipts)

    async def _attempt(
        self,
        ticket: Ticket,
        decision: Dispatch,
        replica: Replica,
        request: HttpRequest,
        endpoint: Endpoint,
        tenant: Tenant,
        facts: RequestFacts,
    ) -> UpstreamConnection | None:
        """Sends the request to one replica. None if no response head came; the brain knows then."""
        chunks = self._outbound.chunks(
            request,
            endpoint,
            replica,
            self._driver.coordinator.fleet.abilities(replica.id),
            decision.session,
            tenant.id,
            is_readable=facts.is_readable,
        )
        try:
            return await replica.exchange(
                chunks, is_head_request=request.method == "HEAD", may_repeat=facts.is_replayable
            )
        except ConnectTimedOut as error:
            self._health.check_now(replica.id)
            ticket.attempt_failed(str(error), was_sent=False, timed_out=False)
        except ConnectFailed as error:
            self._health.suspect(replica.id, str(error))
            ticket.attempt_failed(str(error), was_sent=False, timed_out=False)
        except AnswerTimedOut as error:
            ticket.attempt_failed(str(error), was_sent=True, timed_out=True)
        except AnswerMissing as error:
            self._health.check_now(replica.id)
            ticket.attempt_failed(str(error), was_sent=True, timed_out=False)
        return None

    async def _pass_on(
        self,
        client: ClientConnection,
        request: HttpRequest,
        endpoint: Endpoint,
        ticket: Ticket,
        replica: Replica,
        upstream: UpstreamConnection,
        receipts: RawHeaders,
    ) -> None:
        head = upstream.head.result()
        observer = observe(
            endpoint.protocol,
            endpoint.work,
            get_header(head.headers, b"content-type") or "",
            get_header(head.headers, b"content-encoding"),
        )
        relay = Relay(client, upstream, head, ticket, observer)
        self._relays[relay] = (replica, upstream)
        may_reuse = False
        try:
            may_reuse = await relay.run(receipts, is_http_1_0=request.is_http_1_0)
        finally:
            del self._relays[relay]
            replica.release(upstream, reuse=may_reuse)

    def _receipts(self, decision: Dispatch | Refuse) -> RawHeaders:
        if not self._with_receipts:
            return []
        session: SessionRef | None = decision.session
        source = session.source if session is not None else SessionSource.NONE
        receipts = [(b"x-turnpike-request", decision.request.encode("ascii"))]
        if session is not None:
            receipts.append((b"x-turnpike-session", session.session.encode("ascii")))
            receipts.append((b"x-turnpike-thread", session.thread.encode("ascii")))
            receipts.append((b"x-turnpike-confidence", b"%.2f" % session.confidence))
        receipts.append((b"x-turnpike-source", source.value.encode("ascii")))
        if isinstance(decision, Dispatch):
            receipts.append((b"x-turnpike-replica", decision.placement.replica.encode("ascii")))
            reason = decision.placement.reason.value
        else:
            reason = decision.refusal.reason.value
        receipts.append((b"x-turnpike-queue-ms", b"%.1f" % (decision.waited_s * 1e3)))
        receipts.append((b"x-turnpike-reason", reason.encode("ascii")))
        return receipts
