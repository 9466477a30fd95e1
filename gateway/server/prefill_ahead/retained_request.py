"""The last request of each conversation, and its answer, in memory, until the next one comes.

Invariants: at most `max_bytes` are kept, of one request and one answer of each conversation, heads included,
the oldest go first; at most an eighth of that, besides, of system prompts and tools, those used last; what a
tenant's request held is found for that tenant alone.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from gateway.domain.decision import SessionRef
from gateway.domain.ids import RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Protocol, RequestFacts
from gateway.prefill_ahead.next_prompt import Head, read_head
from gateway.prefill_ahead.rewrite_stats import Client
from gateway.responses.content import ResponseContent
from gateway.server.http.request_parser import HttpRequest

# The part of all bytes that heads may take besides.
_OF_HEADS: Final = 8


class RetainedRequest(msgspec.Struct, eq=False, kw_only=True):
    turn: RequestId
    conversation: tuple[SessionId, ThreadId]
    request: HttpRequest
    client: Client
    agent: int
    model: str | None = None
    """What it was sent to instead of the model that it names."""
    response: ResponseContent | None = None
    """The content of its answer; None if it is not collected."""
    is_answered: bool = False
    """To its end, with all its content."""
    size: int = 0


class KeptRequests:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.bytes = 0
        self._kept: OrderedDict[tuple[SessionId, ThreadId], RetainedRequest] = OrderedDict()

    def get(self, session: SessionId, thread: ThreadId) -> RetainedRequest | None:
        return self._kept.get((session, thread))

    def replace(
        self, turn: RequestId, session: SessionRef, request: HttpRequest, facts: RequestFacts
    ) -> tuple[RetainedRequest, RetainedRequest | None]:
        conversation = (session.session, session.thread)
        before = self.drop(conversation)
        caller, transcript = request.head.caller, facts.transcript
        kept = RetainedRequest(
            turn=turn,
            conversation=conversation,
            request=HttpRequest(request.head, request.body),  # theirs is emptied
            client=Client(caller.tenant.id, facts.protocol, facts.client, transcript.agent_type),
            agent=transcript.agent,
        )
        self._kept[conversation] = kept
        self.grow(kept, _size(request))
        return kept, before

    def grow(self, kept: RetainedRequest, by: int) -> None:
        if self._kept.get(kept.conversation) is not kept:
            return
        kept.size += by
        self.bytes += by
        while self.bytes > self._max_bytes:
            self.drop(next(iter(self._kept)))

    def drop(self, conversation: tuple[SessionId, ThreadId]) -> RetainedRequest | None:
        kept = self._kept.pop(conversation, None)
        if kept is not None:
            self.bytes -= kept.size
        return kept


class PromptHeads:
    """System prompts and tools by the agent that has them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes // _OF_HEADS
        self.bytes = 0
        self._heads: OrderedDict[tuple[TenantId, Protocol, int], tuple[str | None, Head]] = OrderedDict()

    def get(self, client: Client, agent: int) -> Head | None:
        found = self._heads.get((client.tenant, client.protocol, agent))
        return None if found is None else found[1]

    def saw(self, client: Client, agent: int, model: str | None, body: bytes) -> None:
        """The agent's hash identifies system prompt and tools, so they are read once."""
        key = (client.tenant, client.protocol, agent)
        known = self._heads.get(key)
        if known is not None and known[0] == model:
            self._heads.move_to_end(key)
            return
        head = read_head(body)
        if head is None:
            return
        if known is not None:
            del self._heads[key]
            self.bytes -= known[1].size
        self._heads[key] = (model, head)
        self.bytes += head.size
        while self.bytes > self._max_bytes:
            _, (_, oldest) = self._heads.popitem(last=False)
            self.bytes -= oldest.size


def _size(request: HttpRequest) -> int:
    return len(request.body) + sum(len(name) + len(value) for name, value in request.head.headers)
