"""Bodies of requests that replicas may have died of, so that no third one does.

Theory of operation. A client whose request fails sends the same body again, so the failures of a body are
remembered for `_REMEMBERED_S`, by tenant, or until it is answered well. Whether a replica died is known a
little later, from its health checks: one that failed is checked at once.

| the request | the replica may have died of it |
|---|---|
| got no head in time | yes |
| got no head, or its answer broke off | unless a check found it well since, and it was not down meanwhile |
| was answered with an error of the replica's own, or its client left | if it went down soon after |

Requests of the same body that one death ended are one failure. A process that answers with an error because
it is dying takes some seconds to go, and checks as long to see it: until then a body that two replicas
answered so goes to none but those.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from gateway.core.fleet import Fleet
from gateway.core.turns.live import LiveRequest
from gateway.domain.ids import Body, ReplicaId
from gateway.domain.string_enums import Word

# Replicas that may have died of a body; then nobody gets it any more.
MOST_DEATHS = 2
_REMEMBERED_S = 60.0
# A process takes its time to go, and checks to see it; whoever goes later is restarted.
_DIED_WITHIN_S = 8.0
_MOST_REMEMBERED = 4096


class Failure(Word):
    TIMED_OUT = "timed out"
    BROKEN = "broken"
    ANSWERED = "answered"
    LEFT = "left"
    """By its client, before it was answered."""


_DOUBTFUL: Final = (Failure.ANSWERED, Failure.LEFT)


class _Failed(NamedTuple):
    replica: ReplicaId
    failed_s: float
    failure: Failure


class Suspects:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        # Failures by body. While it is empty, nobody need ask.
        self.remembered: OrderedDict[Body, list[_Failed]] = OrderedDict()
        # Of these, those at which nothing broke: of too many they are forgotten first.
        self._doubtful: OrderedDict[Body, None] = OrderedDict()

    def failed(self, live: LiveRequest, replica: ReplicaId, failure: Failure, *, now: float) -> None:
        body = live.body
        if not body[1]:
            return
        known = [each for each in self.remembered.pop(body, ()) if now - each.failed_s <= _REMEMBERED_S]
        if not any(each.replica == replica and each.failed_s >= live.submitted_s for each in known):
            known.append(_Failed(replica, now, failure))
        self.remembered[body] = known[-2 * MOST_DEATHS :]
        self._doubtful.pop(body, None)
        if all(each.failure in _DOUBTFUL for each in known):
            self._doubtful[body] = None
        while now - next(iter(self.remembered.values()))[-1].failed_s > _REMEMBERED_S:
            self.forget(next(iter(self.remembered)))
        if len(self.remembered) > _MOST_REMEMBERED:
            self.forget(next(iter(self._doubtful or self.remembered)))

    def forget(self, body: Body) -> None:
        self.remembered.pop(body, None)
        self._doubtful.pop(body, None)

    def deaths(self, body: Body, *, now: float) -> int:
        known = self.remembered.get(body, ())
        return sum(self._may_have_died(each) for each in known if now - each.failed_s <= _REMEMBERED_S)

    def others(self, live: LiveRequest, *, now: float) -> tuple[ReplicaId, ...]:
        """Replicas that shall not get its body, while those that answered it with errors may die yet."""
        known = self.remembered.get(live.body, ())
        dying = {
            each.replica
            for each in known
            if now - each.failed_s <= _DIED_WITHIN_S and each.failure is Failure.ANSWERED
        }
        if len(dying) < MOST_DEATHS or not any(each.facts.id in dying for each in self._fleet if each.is_up):
            return ()
        return tuple(each.facts.id for each in self._fleet if each.facts.id not in dying)

    def _may_have_died(self, failed: _Failed) -> bool:
        state = self._fleet.get(failed.replica)
        was_up = state is not None and state.is_up and state.up_s <= failed.failed_s
        if failed.failure in _DOUBTFUL:
            # One that was removed need not have died.
            return state is not None and failed.failed_s <= state.down_s <= failed.failed_s + _DIED_WITHIN_S
        is_well = was_up and state is not None and state.checked_s > failed.failed_s
        return failed.failure is Failure.TIMED_OUT or not is_well
