"""Relayed: the response goes to the client (`byte_pump.py`), and its readers see it go by."""

import msgspec

from gateway.core.commands import Dispatch
from gateway.responses.content import ResponseContent
from gateway.responses.observer import ResponseObserver, observe
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.request_parser import HttpRequest
from gateway.server.prefill_ahead.retained_request import RetainedRequest
from gateway.server.prefill_ahead.speculative_prefill import SpeculativePrefills
from gateway.server.proxy.byte_pump import BytePump, Write, framing_of, pass_whole
from gateway.server.proxy.prepare import Prepared
from gateway.server.proxy.send import Begun
from gateway.server.proxy.ticket import Ticket
from gateway.telemetry.first_words import FirstWords
from gateway.telemetry.otel.contents import Contents
from gateway.telemetry.otel.trace_context import TraceContexts
from gateway.upstream.health_probes import HealthChecks


class ContentListeners(msgspec.Struct, frozen=True):
    """Of a turn's texts: prefill ahead, spans with content, the dashboard's first words. Each None if the
    settings have none."""

    prefills: SpeculativePrefills | None
    traces: TraceContexts | None
    contents: Contents | None
    first_words: FirstWords | None

    def begin(
        self, ticket: Ticket, decision: Dispatch, request: HttpRequest
    ) -> tuple[RetainedRequest | None, ResponseContent | None]:
        """The response begins. Returns the request if it is retained (`prefills.answered` follows then), and
        what takes the response's text."""
        session, facts, kept = decision.session, ticket.facts, None
        if self.prefills is not None and session is not None:
            model = decision.model if decision.model != facts.model else None
            kept = self.prefills.keep(ticket.request, session, request, facts, model)
        content = kept.response if kept is not None else None
        if session is None or not request.head.caller.tenant.has_content:
            return kept, content
        if self.first_words is not None:
            self.first_words.began(session.session, facts.protocol, request.body)
        if self.contents is not None and self.traces is not None:
            if self.traces.of(session.session, ticket.request).is_sampled:
                content = self.contents.hold(ticket.request, facts.protocol, request.body, content)
        return kept, content


class ResponseRelay(msgspec.Struct, frozen=True):
    health: HealthChecks
    listeners: ContentListeners

    async def run(self, client: ClientConnection, ticket: Ticket, prepared: Prepared, begun: Begun) -> None:
        """To the response's end. The connection to the replica is released then."""
        request, facts = prepared.request, prepared.facts
        replica, upstream, head = begun.replica, begun.upstream, begun.upstream.head
        assert head is not None
        kept, content = self.listeners.begin(ticket, begun.decision, request)
        if upstream.has_sent_all:  # else the transport holds the body, and it still counts
            client.let_go_of_body()
        if facts.is_relayed and not facts.stores:  # else later requests need the ids in it
            observer = ResponseObserver()
        else:
            endpoint = request.head.caller.endpoint
            observer = observe(
                *(endpoint.protocol, endpoint.work, head.content_type, head.content_encoding),
                content=content,
                may_keep=client.keep_more,
                head=head.start,
            )
        is_reusable = False
        write: Write = client.write
        try:
            if begun.keepalive is None or not begun.keepalive.has_begun:
                client.start_response(head.start + begun.receipts, framing_of(head, request.head))
            else:
                write = begun.keepalive.writer(head)
            whole = upstream.take_complete_body()
            if whole is not None:
                await pass_whole(write, whole, head, ticket, observer)
                is_reusable = True
            else:
                is_reusable = await BytePump(client, upstream, head, ticket, observer, write).run()
        finally:
            replica.release(upstream, reuse=is_reusable)
            if kept is not None and self.listeners.prefills is not None:
                is_whole = observer.seen.has_terminal and observer.answer(head.status).is_good
                self.listeners.prefills.answered(kept, is_whole=is_whole)
        if ticket.has_failed or not is_reusable:
            self.health.check_now(replica.id)
