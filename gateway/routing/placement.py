"""Placement by load: the replica that runs the fewest turns.

Source: none; the floor, for work that belongs to no session. `affinity.py` places turns.

Symbols: —

Deviations: —

Invariants: the chosen replica is one of the candidates; among equally loaded ones the least recently
chosen wins, so equal replicas take turns.
"""

from collections.abc import Sequence
from typing import Protocol

from gateway.domain.decision import Placement, PlacementReason, SessionRef
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, SessionId


class PlacementPolicy(Protocol):
    """Which of these replicas should run the turn?"""

    def place(self, candidates: Sequence[ReplicaLoad], session: SessionRef | None) -> Placement:
        """`candidates` is not empty; all of them have room. `session`: None for what is no turn."""
        ...

    def is_adrift(self, candidates: Sequence[ReplicaLoad], session: SessionRef) -> bool:
        """Whether it lived on a replica that is none of these, so that its prompt is computed anew."""
        ...

    def session_ended(self, session: SessionId) -> None: ...

    def replica_lost(self, replica: ReplicaId) -> None:
        """It is down: what it held is gone."""
        ...


class LeastLoaded:
    def __init__(self) -> None:
        self._last_chosen: dict[ReplicaId, int] = {}
        self._choices = 0

    def place(self, candidates: Sequence[ReplicaLoad]) -> Placement:
        chosen = candidates[0]
        if len(candidates) > 1:
            chosen = min(candidates, key=lambda c: (c.running, self._last_chosen.get(c.replica, 0)))
        self._choices += 1
        self._last_chosen[chosen.replica] = self._choices
        return Placement(replica=chosen.replica, reason=PlacementReason.LEAST_LOADED)
