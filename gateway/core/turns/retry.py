"""Whether a request whose attempt failed is sent again, and where.

Only while no replica has begun to respond, and only if running it twice harms nobody: nothing of it was sent,
or it may be replayed. Not after a timeout, not what replicas seem to die of (`poison_requests.py`), and at
most
`core.max_attempts` times. Another replica of its pool comes first, then a fallback model, then, for
`core.no_replica_wait_s`, the replicas that it was tried on.
"""

from gateway.core import events as ev
from gateway.core.brain_state import BrainState
from gateway.core.model_choices import Admit, ModelChoices
from gateway.core.turns.gate import Gate
from gateway.core.turns.live import LiveRequest


class Retry:
    def __init__(self, shared: BrainState, gate: Gate, models: ModelChoices, admit: Admit) -> None:
        self._config = shared.config
        self._gate = gate
        self._models = models
        self._admit = admit

    def sends_again(self, live: LiveRequest, event: ev.AttemptFailed, *, is_poison: bool, now: float) -> bool:
        """Decides it anew if so."""
        may_repeat = not (event.timed_out or is_poison) and (not event.was_sent or live.facts.is_replayable)
        if not may_repeat or live.attempts >= self._config.max_attempts:
            return False
        is_elsewhere = bool(self._gate.candidates(live.lane))
        if not is_elsewhere and self._models.falls_back(live, now=now):
            return True
        if not is_elsewhere and self._config.no_replica_wait_s:
            live.tried.clear()  # then wherever a replica is there again
        if is_elsewhere or not live.tried:
            self._admit(live, now=now)
            return True
        return self._models.falls_back(live, is_refused=True, now=now)
