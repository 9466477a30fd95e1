"""The seam: what admission and placement may ask about time.

Whoever answers has watched the replicas; whoever asks says what the work is.
"""

from typing import Protocol

from gateway.cost.estimator import TurnWork
from gateway.domain.ids import ReplicaId


class CostModel(Protocol):
    def completion_s(self, replica: ReplicaId, work: TurnWork, *, now: float) -> float: ...

    def turn_s(
        self, replica: ReplicaId, new_tokens: float, cached_tokens: float, output_tokens: float
    ) -> float: ...
