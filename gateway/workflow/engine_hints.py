"""Hints to engines about conversations: the typed hint of `turnpike-vllm`, on the wire.

The request carries a provisional one, because an engine frees a request's blocks before a gateway sees the
end of its answer; another follows at the pause, when the answer's calls are known.

Invariants: hints about a thread have growing numbers; a hint is text of less than
`turnpike_vllm.hints.MAX_TEXT` characters; no id in it is the client's.
"""

from typing import Final

from gateway.domain.decision import Edge, SessionRef
from gateway.domain.ids import ReplicaId, SessionId, ThreadId
from gateway.domain.request import Claims
from gateway.workflow.aeg.graphs import AegConfig, Graphs
from gateway.workflow.conversations import Conversation, StepPrediction
from gateway.workflow.retention import RetentionDecision, at_pause, provisional

try:
    from turnpike_vllm.hints import MAX_SECONDS, VERSION, Hint, sign
except ImportError:  # optional; without it there are no hints
    HAS_CONTRACT = False
else:
    HAS_CONTRACT = True

_MAX_REPLICAS: Final = 4096
_GONE: Final = RetentionDecision(reuse=0.0, retain_s=0.0, returns_in_s=None)


def signed(hint: str, key: str) -> str:
    return sign(hint, key)


class Hints:
    """Of all sessions; none without the contract."""

    def __init__(self, graphs: Graphs | None = None, *, has_envelopes: bool = False) -> None:
        """`has_envelopes`: hints also go to engines without the plugin that know `kv_hints`."""
        self.has_envelopes = has_envelopes
        self._graphs = graphs if graphs is not None else Graphs(AegConfig())
        self._number = 0
        self._kv_used: dict[ReplicaId, float] = {}
        # The engine with a hint of each live session.
        self._engines: dict[SessionId, ReplicaId] = {}

    def engine_reported(self, replica: ReplicaId, kv_used: float | None) -> None:
        if kv_used is not None and (replica in self._kv_used or len(self._kv_used) < _MAX_REPLICAS):
            self._kv_used[replica] = kv_used

    def replica_left(self, replica: ReplicaId) -> None:
        self._kv_used.pop(replica, None)

    def retention(
        self, thread: Conversation, pause: StepPrediction, replica: ReplicaId, stated: Claims | None = None
    ) -> RetentionDecision:
        """Of a turn's state on the replica. `stated`: by a trusted client."""
        return at_pause(thread, pause, kv_used=self._kv_used.get(replica, 0.0), stated=stated)

    def with_request(
        self,
        ref: SessionRef,
        thread: Conversation,
        replica: ReplicaId,
        *,
        age_s: float,
        service_class: str | None,
        is_final: bool = False,
        stated: Claims | None = None,
    ) -> str | None:
        self._engines[ref.session] = replica
        decision = self._provisional(thread, replica, stated)
        return self.write(
            ref.session, ref.thread, decision, is_final=is_final, age_s=age_s, service_class=service_class
        )

    def where_it_was(self, ref: SessionRef, replica: ReplicaId) -> tuple[ReplicaId, str] | None:
        before = self._engines.get(ref.session)
        if before is None or before == replica or ref.edge is not Edge.CONTINUES:
            return None
        hint = self.write(ref.session, ref.thread, _GONE)
        return (before, hint) if hint is not None else None

    def with_prefill(
        self, session: SessionId, thread_id: ThreadId, thread: Conversation, replica: ReplicaId
    ) -> str | None:
        decision = self._provisional(thread, replica)
        return self.write(session, thread_id, decision, service_class="proactive")

    def session_over(self, session: SessionId) -> list[tuple[ReplicaId, str]]:
        replica = self._engines.pop(session, None)
        if replica is None or not HAS_CONTRACT:
            return []
        self._number += 1
        return [(replica, Hint(session=session, seq=self._number, is_finished=True).as_json())]

    def _provisional(
        self, thread: Conversation, replica: ReplicaId, stated: Claims | None = None
    ) -> RetentionDecision:
        goes_on = self._graphs.of(thread.agent).overall_returns()
        return provisional(goes_on, kv_used=self._kv_used.get(replica, 0.0), stated=stated)

    def write(
        self,
        session: SessionId,
        thread: ThreadId,
        decision: RetentionDecision,
        *,
        is_final: bool = False,
        age_s: float | None = None,
        service_class: str | None = None,
    ) -> str | None:
        """`service_class`: `reactive` or `proactive`."""
        if not HAS_CONTRACT:
            return None
        self._number += 1
        # As `Hint.as_json` writes it, in a tenth of the time. Ids are ours: they need no escaping.
        text = (
            f'{{"v":{VERSION},"session":"{session}","seq":{self._number},"thread":"{thread}",'
            f'"retain_s":{min(decision.retain_s, MAX_SECONDS):.3f},"reuse":{decision.reuse:.4f}'
        )
        if service_class is not None:
            text += f',"class":"{service_class}"'
        if age_s is not None:
            text += f',"age_s":{max(0.0, age_s):.3f}'
        if decision.returns_in_s is not None:
            text += f',"prefetch_in_s":{min(decision.returns_in_s, MAX_SECONDS):.3f}'
        if is_final:
            text += ',"final":true'
        return text + "}"
