"""Hints to engines: with a request, and beside requests."""

from gateway.core.brain_state import BrainState
from gateway.core.commands import SendHint
from gateway.core.turns.live import LiveRequest
from gateway.domain.ids import ReplicaId
from gateway.routing.kv_ledger import Conversation


class ToEngines:
    def __init__(self, shared: BrainState) -> None:
        self._fleet = shared.fleet
        self._sessions = shared.sessions
        self._admission = shared.admission
        self._out = shared.out

    def with_request(
        self, live: LiveRequest, replica: ReplicaId, *, now: float
    ) -> tuple[str | None, str | None]:
        """The hint, and the class in it where the plugin follows it; for an engine that `takes_hints`."""
        service_class = self.class_of(live)
        hint = self._sessions.hint_for(live, replica, service_class, now=now)
        self.send_due_hints()
        has_plugin = self._fleet.abilities(replica).turnpike_hints
        return hint, service_class if hint is not None and has_plugin else None

    def takes_hints(self, replica: ReplicaId) -> bool:
        abilities = self._fleet.abilities(replica)
        return abilities.turnpike_hints or (self._sessions.hints.has_envelopes and abilities.kv_hints)

    def class_of(self, live: LiveRequest) -> str | None:
        """None if admission does not know its session."""
        if live.session is None or live.pool is None:
            return None
        service_class = self._admission.class_of(live.session.session, live.pool)
        return service_class.value if service_class is not None else None

    def with_prefill(self, conversation: Conversation, replica: ReplicaId) -> str | None:
        if not self._fleet.abilities(replica).turnpike_hints:
            return None
        thread = self._sessions.conversations.thread(conversation[1])
        return (
            self._sessions.hints.with_prefill(*conversation, thread, replica) if thread is not None else None
        )

    def displaces(self, replica: ReplicaId) -> bool:
        return self._fleet.abilities(replica).turnpike_hints

    def send_due_hints(self) -> None:
        self._out += [
            SendHint(replica=replica, hint=hint)
            for replica, hint in self._sessions.due_hints
            if self._fleet.abilities(replica).turnpike_hints
        ]
        self._sessions.due_hints.clear()
