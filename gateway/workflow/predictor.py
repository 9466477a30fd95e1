"""What is known of the future of sessions, in one place: conversations, retention, hints.

The session book tells it what happened; it answers with what is expected, and with what to tell an engine.

Invariants: what it keeps is bounded by its parts; whoever has no thread here (a side request) gets no hint.
"""

import msgspec

from gateway.domain.by_agent import AgentKey, agent_key
from gateway.domain.decision import Edge, SessionRef
from gateway.domain.ids import NOBODYS, ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Answer, Claims, RequestFacts
from gateway.tool_probe.text_calls import Block, LateCalls
from gateway.workflow.conversations import (
    Conversation,
    Conversations,
    ConversationsConfig,
    StepPrediction,
)
from gateway.workflow.hints import GONE, Hints
from gateway.workflow.retention import Retention, RetentionConfig, RetentionDecision

_MAX_REPLICAS = 4096


class WorkflowConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    progress: ConversationsConfig = ConversationsConfig()
    reuse: RetentionConfig = RetentionConfig()
    share_learned: bool = False
    """What one tenant's sessions teach is used for all tenants. Without it every tenant starts cold; with it
    any tenant can mislead the others."""


class Predictor:
    def __init__(self, config: WorkflowConfig) -> None:
        self.conversations = Conversations(config.progress)
        self._is_shared = config.share_learned
        self._retention = Retention(config.reuse)
        self._hints = Hints()
        self._kv_used: dict[ReplicaId, float] = {}
        self._told: dict[SessionId, ReplicaId] = {}
        """Live sessions of which an engine was told something, and which one."""

    def engine_reported(self, replica: ReplicaId, kv_used: float | None) -> None:
        if kv_used is not None and (replica in self._kv_used or len(self._kv_used) < _MAX_REPLICAS):
            self._kv_used[replica] = kv_used

    def replica_left(self, replica: ReplicaId) -> None:
        self._kv_used.pop(replica, None)

    def owner_of(self, tenant: TenantId) -> TenantId:
        return NOBODYS if self._is_shared else tenant

    def arrived(self, ref: SessionRef, facts: RequestFacts, tenant: TenantId = NOBODYS, *, now: float) -> int:
        thread = self.conversations.arrived(ref, facts, self.owner_of(tenant), now=now)
        return thread.key if thread is not None else 0

    def agent(self, ref: SessionRef, facts: RequestFacts, owner: TenantId) -> AgentKey:
        known = self.conversations.thread(ref.thread)
        return known.agent if known is not None else agent_key(ref, facts, owner)

    def answered(
        self, ref: SessionRef, facts: RequestFacts, answer: Answer | None, *, now: float
    ) -> StepPrediction | None:
        return self.conversations.answered(ref, facts, answer, now=now)

    def behind(self, ref: SessionRef) -> tuple[int, StepPrediction] | None:
        """The type of its conversation, and what is expected behind the last step.

        None while another one is on its way."""
        known = self.conversations.thread(ref.thread) if ref.edge is not Edge.SERVES else None
        if known is None or not known.is_paused:
            return None
        found = self.conversations.predict(known)
        return (known.key, found) if found is not None else None

    def doubted(
        self, ref: SessionRef, turn: RequestId, facts: RequestFacts, answer: Answer, *, now: float
    ) -> None:
        thread = self.conversations.thread(ref.thread)
        manner = answer.utterance.manner
        if thread is not None and manner.is_code and not facts.tool_count:
            block = Block(thread.key, ref.session, manner.names, now)
            thread.text_calls.doubted(turn, block)

    def recognised(
        self, ref: SessionRef, went_on: RequestId, turn: RequestId, facts: RequestFacts, *, now: float
    ) -> list[LateCalls]:
        thread = self.conversations.thread(ref.thread)
        if thread is None:
            return []
        return thread.text_calls.came(went_on, turn, facts.transcript.new, now=now)

    def session_over(self, session: SessionId) -> list[tuple[ReplicaId, str]]:
        self.conversations.session_over(session)
        replica = self._told.pop(session, None)
        hint = self._hints.at_end(session) if replica is not None else None
        return [(replica, hint)] if replica is not None and hint is not None else []

    def retention(
        self,
        thread: ThreadId,
        pause: StepPrediction,
        replica: ReplicaId | None,
        stated: Claims | None = None,
    ) -> RetentionDecision | None:
        """Of the state that a turn has left there. `stated`: by its client, if it is believed."""
        known = self.conversations.thread(thread)
        if known is None:
            return None
        used = self._kv_used.get(replica, 0.0) if replica is not None else 0.0
        return self._retention.at_pause(known, pause, kv_used=used, stated=stated)

    def hint_with_request(
        self,
        ref: SessionRef,
        facts: RequestFacts,
        replica: ReplicaId,
        *,
        age_s: float,
        service_class: str | None,
        stated: Claims | None = None,
    ) -> str | None:
        thread = self.conversations.thread(ref.thread)
        if thread is None:
            return None
        decision = self._provisional(thread, replica, stated)
        self._told[ref.session] = replica
        return self._hints.write(
            ref.session,
            ref.thread,
            decision,
            age_s=age_s,
            is_final=facts.explicit is not None and facts.explicit.final,
            service_class=service_class,
        )

    def hint_where_it_was(self, ref: SessionRef, replica: ReplicaId) -> tuple[ReplicaId, str] | None:
        before = self._told.get(ref.session)
        if before is None or before == replica or ref.edge is not Edge.CONTINUES:
            return None
        hint = self._hints.write(ref.session, ref.thread, GONE)
        return (before, hint) if hint is not None else None

    def hint_with_prefill(self, session: SessionId, thread: ThreadId, replica: ReplicaId) -> str | None:
        known = self.conversations.thread(thread)
        if known is None:
            return None
        decision = self._provisional(known, replica)
        return self._hints.write(session, thread, decision, service_class="proactive")

    def _provisional(
        self, thread: Conversation, replica: ReplicaId, stated: Claims | None = None
    ) -> RetentionDecision:
        goes_on = self.conversations.graphs.of(thread.agent).returns()
        return self._retention.provisional(goes_on, kv_used=self._kv_used.get(replica, 0.0), stated=stated)

    def hint_at_pause(self, ref: SessionRef, decision: RetentionDecision) -> str | None:
        return self._hints.write(ref.session, ref.thread, decision)
