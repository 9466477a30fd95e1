"""The interface of time predictions for admission and placement."""

from typing import Protocol

from gateway.cost.estimator import TurnWork
from gateway.domain.ids import ReplicaId


class CostModel(Protocol):
    def completion_s(self, replica: ReplicaId, work: TurnWork, *, now: float) -> float: ...

    def turn_s(
        self, replica: ReplicaId, new_tokens: float, cached_tokens: float, output_tokens: float
    ) -> float: ...
