"""Readers of a turn's texts: prefill ahead, spans with content, the dashboard's first words."""

import msgspec

from gateway.core.commands import Dispatch
from gateway.responses.content import ResponseContent
from gateway.server.http.request_parser import HttpRequest
from gateway.server.prefill_ahead.retained_request import RetainedRequest
from gateway.server.prefill_ahead.speculative_prefill import SpeculativePrefills
from gateway.server.proxy.ticket import Ticket
from gateway.telemetry.first_words import FirstWords
from gateway.telemetry.otel.contents import Contents
from gateway.telemetry.otel.trace_context import TraceContexts


class ContentListeners(msgspec.Struct, frozen=True):
    """Each None if the settings have none."""

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
