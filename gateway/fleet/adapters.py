"""Which LoRA adapters run where, and where a turn would wait for a place for its own?

Source: ours; the engines' rule is vLLM's (`max_loras`: so many different adapters are in one batch, and a
request for one more waits until all requests of one of them are over).

Invariants: what is kept of a request goes with it; nobody waits for a place where nothing is said of them.
"""

from collections import Counter
from collections.abc import Iterable

from gateway.domain.ids import ReplicaId, RequestId


class AdapterSlots:
    def __init__(self) -> None:
        self._listed: dict[ReplicaId, frozenset[str]] = {}
        self._most: dict[ReplicaId, int] = {}
        self._told: dict[ReplicaId, tuple[str, ...]] = {}
        """What ran there when the engine was asked last."""
        self._ours: dict[ReplicaId, Counter[str]] = {}
        self.running: dict[RequestId, tuple[ReplicaId, str]] = {}
        """To be read only."""
        self.are_told = False
        """Some replica has adapters, and some says how many may run at a time: else nothing need be asked."""

    def listed(self, replica: ReplicaId, adapters: Iterable[str]) -> None:
        found = frozenset(adapters)
        if found:
            self._listed[replica] = found
        else:
            self._listed.pop(replica, None)
        self._look()

    def told(self, replica: ReplicaId, most: int | None, running: tuple[str, ...]) -> None:
        if most is not None:
            self._most[replica], self._told[replica] = most, running
            self._look()

    def _look(self) -> None:
        self.are_told = bool(self._listed and self._most)

    def left(self, replica: ReplicaId) -> None:
        for known in (self._listed, self._most, self._told, self._ours):
            known.pop(replica, None)
        self._look()

    def began(self, request: RequestId, replica: ReplicaId, model: str | None) -> None:
        if model is not None and model in self._listed.get(replica, ()):
            self.running[request] = replica, model
            self._ours.setdefault(replica, Counter())[model] += 1

    def ended(self, request: RequestId) -> None:
        known = self.running.pop(request, None)
        if known is None:
            return
        replica, model = known
        ours = self._ours[replica]
        ours[model] -= 1
        if not ours[model]:
            del ours[model]

    def is_full(self, replica: ReplicaId, model: str | None, *, have_others: bool) -> bool:
        """Whether so many others run there that one of them has to end first. `have_others`: turns run there
        that this gateway did not send; then what the engine told counts, too, though it is a second old."""
        most = self._most.get(replica)
        if most is None or model is None or model not in self._listed.get(replica, ()):
            return False
        running = set(self._ours.get(replica, ()))
        if have_others:
            running.update(self._told[replica])
        return model not in running and len(running) >= most
