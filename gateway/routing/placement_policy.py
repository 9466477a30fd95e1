"""The interface of placement policies, and placement by load, for work outside sessions.

Invariants: the chosen replica is one of the candidates; among equally loaded ones the least recently chosen
wins.
"""

from collections.abc import Callable, Collection, Sequence

import msgspec

from gateway.domain.agent_key import UNKNOWN_AGENT, AgentKey
from gateway.domain.decision import Placement, PlacementReason, SessionRef
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId
from gateway.domain.request import Usage
from gateway.routing.kv_ledger import KvLedger


class Query(msgspec.Struct, frozen=True):
    """A turn to place."""

    now: float = 0.0
    agent: AgentKey = UNKNOWN_AGENT
    text_bytes: int = 0
    tokens: Callable[[], float] = float
    """Expected, of its prompt. A call takes some µs."""
    waits_at: Collection[ReplicaId] = ()
    """Where its adapter has no slot."""
    handed_over: float = 0.0
    """Prompt tokens computed for any replica."""


NOTHING_KNOWN = Query()


class LeastLoaded:
    def __init__(self) -> None:
        self._last_chosen: dict[ReplicaId, int] = {}
        self._choices = 0

    def place(self, candidates: Sequence[ReplicaLoad]) -> Placement:
        chosen = min(candidates, key=lambda load: (load.running, self._last_chosen.get(load.replica, 0)))
        self._choices += 1
        self._last_chosen[chosen.replica] = self._choices
        return Placement(replica=chosen.replica, reason=PlacementReason.LEAST_LOADED)

    def replica_left(self, replica: ReplicaId) -> None:
        self._last_chosen.pop(replica, None)


class PlacementPolicy:
    """Which of these replicas should run the turn? Its ledger estimates what they hold."""

    def __init__(self, ledger: KvLedger | None = None) -> None:
        self.ledger = ledger if ledger is not None else KvLedger(max_conversations=200_000)
        self._by_load = LeastLoaded()

    def place(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef | None, query: Query = NOTHING_KNOWN
    ) -> Placement:
        """`candidates` is not empty; all of them have room. `session`: None for work that is no turn."""
        raise NotImplementedError

    def turn_over(
        self, session: SessionRef, replica: ReplicaId, usage: Usage, *, pauses: bool, now: float
    ) -> None:
        """A turn was answered, to its end. `pauses`: the session's tools run now."""

    def replica_left(self, replica: ReplicaId) -> None:
        self._by_load.replica_left(replica)
        self.ledger.replica_left(replica)
