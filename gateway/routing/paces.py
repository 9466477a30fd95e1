"""Paces: what usual turns take on a replica, as far as replicas differ by more than chance.

Source: none.

Theory of operation. Of a replica of which little was seen, or that shares its processors, predictions are off
by tens of percent, and those of two equal ones differ by as much. That matters little to a turn, but much to
where sessions live, as each of them counts there. So what they take in the long run is predicted of one
replica, the one in the middle, times how much longer a usual turn takes here; less than `_ALIKE` is no
difference, and more is one only by what it is more.

Symbols: —

Deviations: —

Invariants: memory is bounded by the number of replicas; predictions are positive; of replicas that are alike
they are equal.
"""

from collections.abc import Sequence
from typing import Final

from gateway.cost.foresight import Foresight
from gateway.cost.roofline import Turn
from gateway.domain.ids import ReplicaId

_ALIKE: Final = 1.3
_HOLDS_FOR: Final = 64
"""Placements, until paces are looked at again."""
_AVERAGED: Final = 0.05
_NEW_TOKENS, _CONTEXT_TOKENS = 2_000.0, 20_000.0
"""Of a usual turn, until there were some."""
_OUTPUT_TOKENS: Final = 200


class Paces:
    def __init__(self, foresight: Foresight) -> None:
        self._foresight = foresight
        self._new_tokens = _NEW_TOKENS
        self.context_tokens = _CONTEXT_TOKENS
        """Of a usual turn: what its session holds after it."""
        self._middle: ReplicaId | None = None
        self._usual_s = 0.0
        """Of a usual turn, in the middle."""
        self._paces: dict[ReplicaId, float] = {}
        self._holds_for = 0

    def seen(self, *, context_tokens: float, new_tokens: float | None) -> None:
        """A turn ended. `new_tokens`: of its prompt, those that had to be computed; None if that says nothing
        of usual turns."""
        self.context_tokens += _AVERAGED * (context_tokens - self.context_tokens)
        if new_tokens is not None:
            self._new_tokens += _AVERAGED * (new_tokens - self._new_tokens)

    def compare(self, replicas: Sequence[ReplicaId]) -> None:
        """A placement is about to be made among these, of which there is at least one."""
        self._holds_for -= 1
        if self._holds_for < 0 or self._middle is None:
            self._holds_for = _HOLDS_FOR
            self._paces.clear()
            self._middle = sorted(replicas, key=self._alone_s)[len(replicas) // 2]
            self._usual_s = self._alone_s(self._middle)

    def usual_turn_s(self, replica: ReplicaId) -> float:
        """That has the replica to itself."""
        return self._of(replica) * self._usual_s

    def prefill_s(self, replica: ReplicaId, new_tokens: float) -> float:
        work = Turn(new_tokens=int(new_tokens), cached_tokens=0, output_tokens=1)
        return self._of(replica) * self._foresight.isolated_task_s(self._middle or replica, [work])

    def replica_left(self, replica: ReplicaId) -> None:
        self._paces.pop(replica, None)
        if self._middle == replica:
            self._middle = None

    def _of(self, replica: ReplicaId) -> float:
        if self._middle is None:
            self.compare([replica])
        known = self._paces.get(replica)
        if known is None:
            ratio = self._alone_s(replica) / self._usual_s
            known = self._paces[replica] = ratio / min(_ALIKE, max(1 / _ALIKE, ratio))
        return known

    def _alone_s(self, replica: ReplicaId) -> float:
        turn = Turn(
            new_tokens=int(self._new_tokens),
            cached_tokens=int(self.context_tokens),
            output_tokens=_OUTPUT_TOKENS,
        )
        return self._foresight.isolated_task_s(replica, [turn])
