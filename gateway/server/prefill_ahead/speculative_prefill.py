"""Next prompts that are computed while tools run, as far as they are known: the driver's side of it.

A request whose answer may call tools is kept, until the conversation's next one comes or there is no room.
When the brain decides so, it is sent once more, for one token that nobody reads, with its answer behind it,
as its client will send that back. How clients send answers back is learned from each next request.

Invariants: every prefill that the brain requests ends in one `PrefillEnded`; nothing here raises into the
brain's driver; nothing is read on the way of a request or an answer that somebody waits for; what is sent for
a tenant comes from its own requests and the answers to them.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from gateway.core import events as ev
from gateway.core.commands import Prefill, StopPrefill
from gateway.domain.decision import Edge, SessionRef
from gateway.domain.ids import ReplicaId, RequestId
from gateway.domain.request import RequestFacts, Usage
from gateway.prefill_ahead.next_prompt import compare, may_be_foreseen, next_prompt
from gateway.prefill_ahead.rewrite_stats import Echoing
from gateway.responses.content import ResponseContent
from gateway.server.http.request_parser import HttpRequest
from gateway.server.prefill_ahead.retained_request import KeptRequests, PromptHeads, RetainedRequest
from gateway.server.proxy.driver import Driver
from gateway.server.proxy.internal_responses import ask_unseen, usage_of
from gateway.server.proxy.upstream_request import Outbound
from gateway.upstream.errors import UpstreamError
from gateway.upstream.one_shot import Run
from gateway.upstream.replica import Replica

# Of a request whose next one is foreseen: to take a larger one apart holds others up for too long.
_MAX_BYTES: Final = 1 << 20


class SpeculativePrefills:
    def __init__(
        self,
        driver: Driver,
        replicas: Mapping[ReplicaId, Replica],
        outbound: Outbound,
        *,
        max_bytes: int,
    ) -> None:
        self._driver = driver
        self._replicas = replicas
        self._outbound = outbound
        self.kept = KeptRequests(max_bytes)
        self.heads = PromptHeads(max_bytes)
        self._echoing = Echoing()
        self._under_way: dict[RequestId, Run] = {}
        driver.on_prefill = self.take

    def keep(
        self,
        turn: RequestId,
        session: SessionRef,
        request: HttpRequest,
        facts: RequestFacts,
        model: str | None = None,
    ) -> RetainedRequest | None:
        """It is being answered; its client may go on with what the answer asks for. `model`: what it was sent
        to instead of the one that it names. If something comes back here, `answered` is to be called once
        that is over."""
        if session.edge is Edge.SERVES:
            return None  # the conversation goes on from the request before
        if (
            not may_be_foreseen(facts.protocol)
            or not facts.is_readable
            or request.head.facts.coding
            or len(request.body) > _MAX_BYTES
        ):
            self.kept.drop((session.session, session.thread))
            return None
        kept, before = self.kept.replace(turn, session, request, facts)
        kept.model = model
        kept.response, body = ResponseContent(), kept.request.body
        goes_on_from = before if session.edge is Edge.CONTINUES else None
        # No argument of the callback: the loop would write it into the log, should this fail.
        self._driver.call_soon(lambda: self._learn(goes_on_from, body, kept, facts.model))
        return kept

    def answered(self, kept: RetainedRequest, *, is_whole: bool) -> None:
        response = kept.response
        assert response is not None
        kept.is_answered = is_whole and response.is_whole
        if kept.is_answered:
            self.kept.grow(kept, response.size)
        else:
            kept.response = None

    def take(self, command: Prefill | StopPrefill) -> None:
        # Neither on the spot: the brain is in the midst of an event.
        if isinstance(command, Prefill):
            self._driver.call_soon(self._begin, command)
        else:
            self._driver.call_soon(self._stop, command)

    def close(self) -> None:
        for run in tuple(self._under_way.values()):
            run.cancel()

    def _learn(
        self, before: RetainedRequest | None, body: bytes, kept: RetainedRequest, model: str | None
    ) -> None:
        """`before`: the request that this body goes on from."""
        if kept.agent:
            self.heads.saw(kept.client, kept.agent, model, body)
        if before is None or before.response is None or not before.is_answered:
            return
        client = before.client
        manner = self._echoing.manner(client)
        found = compare(client.protocol, before.request.body, before.response, manner, body)
        if found is not None:
            self._echoing.learn(client, found)

    def _begin(self, command: Prefill) -> None:
        found: list[Usage] = []

        def over() -> None:
            del self._under_way[command.turn]
            self._driver.send(ev.PrefillEnded(command.turn, found[0] if found else None))

        self._under_way[command.turn] = run = Run(self._compute(command, found), over)
        run.advance()

    def _stop(self, command: StopPrefill) -> None:
        if command.turn in self._under_way:
            self._under_way[command.turn].cancel()

    async def _compute(self, command: Prefill, found: list[Usage]) -> None:
        kept = self.kept.get(command.session, command.thread)
        replica = self._replicas.get(command.replica)
        if kept is None or kept.turn != command.turn or replica is None:
            return  # it has gone on, or there was no room for it
        body = self._foreseen(kept, command.agent)
        if body is None:
            return
        request = HttpRequest(kept.request.head, body)
        chunks = self._outbound.chunks(request, replica, hint=command.hint, model=kept.model)
        try:
            upstream, answer = await ask_unseen(replica, chunks)
        except UpstreamError:
            return
        assert upstream.head is not None
        if upstream.head.status == HTTPStatus.BAD_REQUEST:
            self._echoing.refused(kept.client)
        if (usage := usage_of(upstream, request.head.caller.endpoint, answer)) is not None:
            found.append(usage)

    def _foreseen(self, kept: RetainedRequest, agent: int) -> bytes | None:
        """What is known of the next request; None if that is too little, or was mostly wrong lately."""
        client = kept.client
        if not kept.is_answered or kept.response is None or not self._echoing.is_worth_it(client):
            return None
        head = None
        if agent not in (0, kept.agent):
            head = self.heads.get(client, agent)
            if head is None:
                return None
        return next_prompt(
            client.protocol, kept.request.body, kept.response, self._echoing.manner(client), head
        )
