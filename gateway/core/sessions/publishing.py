"""Turns of this gateway, published to the others: by which names they find the gateway that has a session
(`gateway/identity/evidence.py`), and what they need to go on with it.

Invariants: every word is taken once; what a whole answer minted is published with the end of its turn.
"""

from gateway.core.commands import Publish
from gateway.core.turns.live import LiveRequest
from gateway.domain.ids import RequestId, TenantId
from gateway.domain.request import Answer, ExplicitId
from gateway.identity import evidence
from gateway.identity.explicit_ids import TURNPIKE_SCHEMA
from gateway.routing.state_residence import state_key
from gateway.workflow.content_matching import retried_within_s
from gateway.workflow.sessions import Sessions
from gateway.workflow.turns import Turn


class Publishing:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._due: list[Publish] = []

    def take(self) -> list[Publish]:
        due, self._due = self._due, []
        return due

    def opened(self, turn: RequestId, tenant: TenantId, stated: ExplicitId | None) -> None:
        if stated is not None:
            name = evidence.of_stated(tenant, stated.schema, stated.session)
            self._due.append(Publish(request=turn, tenant=tenant, names=(name,)))

    def minted(self, live: LiveRequest, minted: int) -> None:
        name = evidence.of_minted(live.tenant, minted)
        self._due.append(Publish(request=live.request, tenant=live.tenant, given=(name,)))

    def ended(self, live: LiveRequest, turn: Turn, answer: Answer | None) -> None:
        tenant, session, stated = live.tenant, turn.session, live.facts.explicit
        names: list[int] = []
        given: list[int] = []
        if self._due:  # what this very event saw before (an answer that came whole) goes with it
            due, self._due = self._due, []
            for each in due:
                if each.request == turn.request:
                    names += each.names
                    given += each.given
                else:
                    self._due.append(each)
        if stated is not None and (tenant, stated.schema, stated.session) in session.explicit_keys:
            names.append(evidence.of_stated(tenant, stated.schema, stated.session))
        if session.turns == 1:  # as its answer names it
            names.append(evidence.of_stated(tenant, TURNPIKE_SCHEMA, session.id))
        if turn.text and not turn.has_failed:
            given.append(evidence.of_answer(tenant, turn.tail, turn.text))
        trace = self._sessions.trace_of(turn)
        if answer is not None and live.tried:
            usage, trace.replica = answer.usage, live.tried[-1]
            trace.prompt_tokens, trace.output_tokens = usage.prompt_tokens, usage.output_tokens
            trace.states = tuple((state_key(tenant, each), trace.replica) for each in answer.state_ids)
        published = Publish(
            request=turn.request, tenant=tenant, names=tuple(names), given=tuple(given), trace=trace
        )
        self._due.append(published)
        if turn.has_failed:
            name, lasts_s = evidence.of_failed(tenant, turn.body), retried_within_s(turn)
            self._due.append(Publish(request=turn.request, tenant=tenant, names=(name,), lasts_s=lasts_s))
