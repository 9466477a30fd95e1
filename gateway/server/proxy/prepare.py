"""How a turn is asked for.

It is read and judged, what others know of its session is fetched, what it may use is reserved, and the brain
is told. What the brain decides is said to the replica beside what the client says.
"""

from collections.abc import Mapping
from functools import partial

from msgspec import Raw

from gateway.core import events as ev
from gateway.core import refusals
from gateway.core.commands import Dispatch
from gateway.core.stream import GPU_WORK
from gateway.domain.decision import Refusal
from gateway.domain.ids import ReplicaId, SessionId
from gateway.domain.request import Protocol, RequestFacts, Work
from gateway.responses.content import ResponseContent
from gateway.server.cluster.peer_client import PassOn
from gateway.server.cluster.peers import Peers
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.request_parser import HttpRequest
from gateway.server.prefill_ahead.retained_request import RetainedRequest
from gateway.server.prefill_ahead.speculative_prefill import SpeculativePrefills
from gateway.server.proxy.driver import Driver, Ticket
from gateway.server.proxy.read_request import Reading
from gateway.server.proxy.upstream_request import Outbound, is_form_alone
from gateway.server.storage.tenant_usage import UsageReservations
from gateway.telemetry.first_words import FirstWords
from gateway.telemetry.otel.contents import Contents
from gateway.telemetry.otel.trace_context import TraceContexts
from gateway.upstream.health import HealthChecks
from gateway.upstream.replica import Replica
from gateway.wire.inflate import INFLATABLE
from gateway.wire.splice import Chunk, is_object


class RequestPreparation:
    """What all that ask for turns share."""

    def __init__(
        self,
        driver: Driver,
        health: HealthChecks,
        outbound: Outbound,
        reading: Reading,
        *,
        are_keys_required: bool,
        traces: TraceContexts | None,
        contents: Contents | None,
        first_words: FirstWords | None,
        prefills: SpeculativePrefills | None,
        peers: Peers | None,
        spending: UsageReservations | None,
    ) -> None:
        """`traces`: None if nobody traces; `contents`: None if no trace tells what is said;
        `first_words`: None if the dashboard has none; `prefills`: None if no prompt is computed ahead;
        `peers`: None if this is the only gateway; `spending`: None if the brain knows what tenants use."""
        self.driver = driver
        self.outbound = outbound
        self.are_keys_required = are_keys_required
        self._health = health
        self.reading = reading
        self._traces = traces
        self._contents = contents
        self._first_words = first_words
        self.prefills = prefills
        self.peers = peers
        self.spending = spending
        self._has_listeners = any((prefills, contents, first_words is not None))

    async def is_ours(
        self,
        request: HttpRequest,
        facts: RequestFacts,
        client: ClientConnection | None,
        pass_on: PassOn | None = None,
    ) -> bool:
        """Whether it is decided here; what is known elsewhere of its session is known here from then on.
        `client`: whose request may be passed on to who has its session; or `pass_on`, which does it."""
        peers, visitor = self.peers, request.head.visitor
        if peers is None or peers.has(visitor, facts):
            return True
        if pass_on is None and client is not None:
            pass_on = partial(peers.links.pass_on, client, request, facts)
        if pass_on is None:
            left = await peers.left_for_us(visitor, facts)
        elif (placed := await peers.place(request, facts, pass_on)) is not None:
            left = placed
        else:
            return False
        for trace in left:
            self.driver.send(ev.SessionAdopted(trace))
        return True

    async def open(
        self, request: HttpRequest, facts: RequestFacts, *, without: tuple[ReplicaId, ...] = ()
    ) -> Ticket:
        tenant, spending = request.head.visitor.tenant, self.spending
        reserved = await spending.reserve(tenant.id, facts) if spending is not None else None
        ticket = self.driver.open_ticket(tenant.id, facts, reserved, key=tenant.key, without=without)
        if self._traces is not None and (traceparent := request.head.facts.traceparent):
            self._traces.arrived(ticket.request, traceparent)
        return ticket

    def trace(self, ticket: Ticket, session: SessionId | None) -> bytes | None:
        return self._traces.header(ticket.request, session) if self._traces is not None else None

    def chunks(
        self,
        ticket: Ticket,
        decision: Dispatch,
        request: HttpRequest,
        facts: RequestFacts,
        replica: Replica,
        *,
        fetch: Mapping[str, Raw] | None = None,
    ) -> list[Chunk]:
        """As it goes to the replica; `fetch` may differ from try to try."""
        session = decision.session
        return self.outbound.chunks(
            request,
            replica,
            self.driver.coordinator.fleet.abilities(replica.id),
            session,
            is_readable=facts.is_readable,
            hint=decision.hint,
            rank=decision.rank,
            trace=self.trace(ticket, session.session if session else None) if self._traces else None,
            model=decision.model if decision.model != facts.model else None,
            fetch=fetch,
        )

    def listeners(
        self, ticket: Ticket, decision: Dispatch, request: HttpRequest, facts: RequestFacts
    ) -> tuple[RetainedRequest | None, ResponseContent | None]:
        """It is being answered: the conversation, if it is to be kept, and who is to be told what the answer
        says."""
        if not self._has_listeners:
            return None, None
        kept = self._keep(ticket, decision, request, facts)
        return kept, self._said(ticket, decision, request, facts, kept)

    def _keep(
        self, ticket: Ticket, decision: Dispatch, request: HttpRequest, facts: RequestFacts
    ) -> RetainedRequest | None:
        if self.prefills is None or decision.session is None:
            return None
        return self.prefills.keep(
            ticket.request, decision.session, request, facts, _other_model(decision, facts)
        )

    def _said(
        self,
        ticket: Ticket,
        decision: Dispatch,
        request: HttpRequest,
        facts: RequestFacts,
        kept: RetainedRequest | None,
    ) -> ResponseContent | None:
        said = kept.response if kept is not None else None
        session, traces, contents = decision.session, self._traces, self._contents
        if session is None or not request.head.visitor.tenant.has_content:
            return said
        if self._first_words is not None:
            self._first_words.began(session.session, facts.protocol, request.body)
        if contents is None or traces is None:
            return said
        if not traces.of(session.session, ticket.request).is_sampled:
            return said
        return contents.hold(ticket.request, facts.protocol, request.body, said)

    def not_found(self, replica: Replica, model: str | None) -> None:
        state = self.driver.coordinator.fleet.get(replica.id)
        if state is not None and model in state.facts.adapters:
            self._health.check_now(replica.id)


def _other_model(decision: Dispatch, facts: RequestFacts) -> str | None:
    return decision.model if decision.model != facts.model else None


def refusal_of(
    request: HttpRequest, facts: RequestFacts, *, are_keys_required: bool, is_salted: bool
) -> Refusal | None:
    """None if it may pass. `is_salted`: each tenant's prompts have a cache of their own."""
    may_move_kv = request.head.visitor.tenant.may_move_kv
    if facts.moves_kv and not may_move_kv:
        return refusals.moves_kv()
    if facts.names_response and are_keys_required:
        return refusals.names_response()
    coding = request.head.facts.coding if request.body else ""
    # Where tenants are apart, what is not known must not matter. An engine may see more than we do in an
    # unknown coding, and in what is too much to be read: an id of a session that was stopped, another
    # model, KV caches, another tenant's response.
    is_turn, is_ours = facts.work is Work.GENERATE, facts.protocol is Protocol.RESPONSES
    must_be_known = is_turn or is_ours or not may_move_kv
    is_unknown = coding or (not facts.is_readable and (is_ours or (facts.is_hidden and is_turn)))
    # Where no salt can be put, an engine might take the client's: one that passes over the coding, say.
    lacks_salt = False
    if is_salted and request.body and facts.work in GPU_WORK:
        is_form = is_form_alone(request) and request.body.startswith(b"--")
        lacks_salt = bool(coding) or not (is_form or is_object(request.body))
    if lacks_salt or (are_keys_required and must_be_known and is_unknown):
        return refusals.unread(coding, facts, is_known=coding in INFLATABLE, swells=request.swells)
    return None
