"""LoRA adapters: which run where, and where does a turn wait for a slot?

Source: ours; the engines' rule is vLLM's (`max_loras`: so many different adapters are in one batch, and a
request for one more waits until all requests of one of them are over).

Invariants: a request leaves nothing behind; without reports all slots count as free.
"""

from collections.abc import Iterable

from gateway.domain.ids import ReplicaId, RequestId


class AdapterSlots:
    def __init__(self) -> None:
        self._listed: dict[ReplicaId, frozenset[str]] = {}
        # Slots, and the running adapters.
        self._reported: dict[ReplicaId, tuple[int, tuple[str, ...]]] = {}
        # Of this gateway's turns. Read only.
        self.running: dict[ReplicaId, dict[RequestId, str]] = {}
        # A replica has adapters, and a replica reports slots: a shortcut for fleets without.
        self.is_used = False

    def listed(self, replica: ReplicaId, adapters: Iterable[str]) -> None:
        self._listed.pop(replica, None)
        if found := frozenset(adapters):
            self._listed[replica] = found
        self.is_used = bool(self._listed and self._reported)

    def engine_reported(self, replica: ReplicaId, most: int | None, running: tuple[str, ...]) -> None:
        if most is not None:
            self._reported[replica] = most, running
            self.is_used = bool(self._listed)

    def left(self, replica: ReplicaId) -> None:
        self._reported.pop(replica, None)
        self.running.pop(replica, None)
        self.listed(replica, ())

    def began(self, request: RequestId, replica: ReplicaId, model: str | None) -> None:
        if model is not None and model in self._listed.get(replica, ()):
            self.running.setdefault(replica, {})[request] = model

    def ended(self, request: RequestId, replica: ReplicaId) -> None:
        running = self.running.get(replica)
        if running is not None and running.pop(request, None) is not None and not running:
            del self.running[replica]

    def is_full(self, replica: ReplicaId, model: str | None, *, have_others: bool) -> bool:
        """Whether another adapter has to end first. `have_others`: turns of other senders run there; then
        the engine's report counts, too, though it is a second old."""
        if model is None or model not in self._listed.get(replica, ()) or replica not in self._reported:
            return False
        most, there = self._reported[replica]
        running = set(self.running.get(replica, {}).values())
        if have_others:
            running.update(there)
        return model not in running and len(running) >= most
