"""The seam: what admission and placement may ask about time.

Whoever answers has watched the replicas; whoever asks says what the work is.
"""

from collections.abc import Iterable
from typing import Protocol

from gateway.cost.estimator import TurnWork
from gateway.cost.roofline import Turn
from gateway.domain.ids import ReplicaId


class Foresight(Protocol):
    def completion_s(self, replica: ReplicaId, work: TurnWork, *, now: float) -> float:
        """How long a turn would take that is sent there now, among those that are there."""
        ...

    def isolated_task_s(
        self, replica: ReplicaId, turns: Iterable[Turn], gaps_s: Iterable[float] = ()
    ) -> float:
        """How long a session would take that has the replica to itself, with the gaps between its turns."""
        ...
