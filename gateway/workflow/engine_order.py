"""In which order should a stock engine run what waits there?

Source: Agent.xpu (arXiv 2506.24045), §4.4: reactive work before proactive, and §4.5: what waits for too long
is promoted. Sutradhara (arXiv 2601.12967), §4.3, and MARS, §4.3, order by the arrival of the task and by
attained service; see the deviations.

Symbols: *priority* → the integer that vLLM compares where it runs with `--scheduling-policy priority`: the
lowest goes first, equals go in order of arrival, and the highest is preempted first. *Threshold age* →
`MAX_WAIT_S`.

Deviations: one number for a request, compared when it is let in and when somebody must be preempted; the
plugin decides at every step. There is no level by attained service and no age of the task in it: behind the
gateway's window so few requests wait in an engine that neither changes anything measurable. A number
that was told cannot be taken back, so the one that waits for too long is not promoted: whoever comes after it
is put behind it.

Invariants: 0, vLLM's own default, for what somebody waits for; never less, so that a number that an operator
or a trusted client states can go before everything. Nobody who came more than `MAX_WAIT_S` after a request
goes before it, whatever it is. Of one class the oldest goes first and is preempted last.
"""

from typing import Final

from gateway.domain.ids import ReplicaId, RequestId

FIRST: Final = 0
BEHIND: Final = 1
MAX_WAIT_S: Final = 30.0
"""As long as the plugin lets a request wait, by default."""


class EngineOrder:
    def __init__(self) -> None:
        self._behind: dict[ReplicaId, dict[RequestId, float]] = {}
        """Requests that were put behind others and have no first token yet; since when, the oldest first."""
        self._replica: dict[RequestId, ReplicaId] = {}

    def submitted(self, request: RequestId, replica: ReplicaId, can_wait: bool, *, now: float) -> int:
        """Its priority there. `can_wait`: it is background work."""
        self.runs(request)  # elsewhere, before
        waiting = self._behind.get(replica)
        is_one_starved = waiting is not None and now - next(iter(waiting.values())) >= MAX_WAIT_S
        if not can_wait:
            return BEHIND if is_one_starved else FIRST
        self._behind.setdefault(replica, {})[request] = now
        self._replica[request] = replica
        return BEHIND

    def runs(self, request: RequestId) -> None:
        replica = self._replica.pop(request, None)
        if replica is not None:
            waiting = self._behind[replica]
            del waiting[request]
            if not waiting:
                del self._behind[replica]
