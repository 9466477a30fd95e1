"""Readers of a turn's texts: prefill ahead, spans with content, the dashboard's first words."""

from gateway.core.commands import Dispatch
from gateway.domain.request import RequestFacts
from gateway.responses.content import ResponseContent
from gateway.server.http.request_parser import HttpRequest
from gateway.server.prefill_ahead.retained_request import RetainedRequest
from gateway.server.prefill_ahead.speculative_prefill import SpeculativePrefills
from gateway.server.proxy.driver import Ticket
from gateway.telemetry.first_words import FirstWords
from gateway.telemetry.otel.contents import Contents
from gateway.telemetry.otel.trace_context import TraceContexts


class ContentListeners:
    """Each None if the settings have none."""

    def __init__(
        self,
        prefills: SpeculativePrefills | None,
        traces: TraceContexts | None,
        contents: Contents | None,
        first_words: FirstWords | None,
    ) -> None:
        self.prefills = prefills
        self._traces = traces
        self._contents = contents
        self._first_words = first_words
        self._are_any = any((prefills, contents, first_words is not None))

    def begin(
        self, ticket: Ticket, decision: Dispatch, request: HttpRequest, facts: RequestFacts
    ) -> tuple[RetainedRequest | None, ResponseContent | None]:
        """The response begins. Returns the request if it is retained (`end` follows then), and what takes the
        response's text."""
        if not self._are_any:
            return None, None
        session, kept = decision.session, None
        if self.prefills is not None and session is not None:
            model = decision.model if decision.model != facts.model else None
            kept = self.prefills.keep(ticket.request, session, request, facts, model)
        content = kept.response if kept is not None else None
        if session is None or not request.head.caller.tenant.has_content:
            return kept, content
        if self._first_words is not None:
            self._first_words.began(session.session, facts.protocol, request.body)
        traces, contents = self._traces, self._contents
        if contents is not None and traces is not None:
            if traces.of(session.session, ticket.request).is_sampled:
                content = contents.hold(ticket.request, facts.protocol, request.body, content)
        return kept, content

    def end(self, kept: RetainedRequest, *, is_whole: bool) -> None:
        if self.prefills is not None:
            self.prefills.answered(kept, is_whole=is_whole)
