"""Session affinity, bounded by load: a turn goes where its session's KV cache is, unless that is busy.

Source: SAGA (§5.1, Eq. 7): stay while the load is below θ, else take the least loaded.

Symbols: θ → `spill_factor` and `spill_floor`, together.

Deviations: SAGA's θ is a share of a capacity that a gateway in front of stock servers does not know; ours is
a multiple of what the replicas run on average. A new session goes where the fewest sessions live, not the
fewest turns: sessions whose tools run hold KV blocks, too. Affinity is per conversation, so a burst of
sub-agents that spills over leaves its parent's home alone.

Invariants: the chosen replica is one of the candidates; those of `KvLedger`.
"""

from collections.abc import Sequence

from gateway.domain.decision import Edge, Placement, PlacementReason, SessionRef
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId
from gateway.domain.request import Usage
from gateway.routing.placement_policy import NOTHING_KNOWN, PlacementPolicy, Query


class SessionAffinity(PlacementPolicy):
    def __init__(self, *, spill_factor: float = 1.5, spill_floor: int = 8) -> None:
        """A turn leaves its home when that runs more than `spill_factor` times what a replica runs on
        average, and more than `spill_floor` turns."""
        self._spill_factor = spill_factor
        self._spill_floor = spill_floor
        super().__init__()

    def place(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef | None, query: Query = NOTHING_KNOWN
    ) -> Placement:
        if session is None:
            return self._by_load.place(candidates)
        self.ledger.pass_time(now=query.now)
        chosen, reason = self._choose(candidates, session)
        self.ledger.settle(session, chosen.replica, now=query.now)
        return Placement(replica=chosen.replica, reason=reason)

    def turn_over(
        self, session: SessionRef, replica: ReplicaId, usage: Usage, *, pauses: bool, now: float
    ) -> None:
        if session.edge is not Edge.SERVES:
            self.ledger.expect(session.session, works=pauses, now=now)

    def _choose(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef
    ) -> tuple[ReplicaLoad, PlacementReason]:
        home = self.ledger.home(session)
        if home is None:
            return self._emptiest(candidates), PlacementReason.LEAST_LOADED
        load = next((c for c in candidates if c.replica == home), None)
        if load is None:
            return self._emptiest(candidates), PlacementReason.AFFINITY_REPLICA_DOWN
        most = self._spill_factor * sum(c.running for c in candidates) / len(candidates)
        if load.running > self._spill_floor and load.running > most:
            return min(candidates, key=lambda c: c.running), PlacementReason.HOME_IS_BUSY
        return load, PlacementReason.SESSION_LIVES_THERE

    def _emptiest(self, candidates: Sequence[ReplicaLoad]) -> ReplicaLoad:
        return min(candidates, key=lambda c: (self.ledger.sessions_at.get(c.replica, 0), c.running))
