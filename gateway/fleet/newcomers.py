"""Newcomers: which of the replicas of which too little was seen to expect anything answers nothing?

Source: ours.

Theory of operation. Replicas of one pool are compared with each other. What others took until their first
tokens, for each second that their prompts take if nothing of them is cached, is their pace. A newcomer that
has shown no sign of life since several of its streamed turns were sent, for far longer than at the slowest of
those paces, while as many turns that were sent later began elsewhere, is wedged.

Invariant: memory is bounded by turns that are awaited of newcomers, and `_PACES` for each pool.
"""

from collections import deque
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from gateway.domain.ids import PoolId, ReplicaId, RequestId

_FAR: Final = 4.0
"""Times the slowest pace of the others."""
_LEAST_S: Final = 1.0
"""Nobody is wedged before."""
_SHORT_S: Final = 0.05
"""A prompt takes so long at least."""
_PACES: Final = 16


class _Awaited(msgspec.Struct, eq=False):
    sent_s: float
    work_s: float
    """To compute all of its prompt, alone, as believed."""


class Newcomers:
    def __init__(self, several: int) -> None:
        """`several`: turns in a row."""
        self._several = several
        self.awaited: dict[ReplicaId, dict[RequestId, _Awaited]] = {}
        """While it is empty, nobody need be told of ends and beginnings."""
        self._paces: dict[PoolId, deque[tuple[ReplicaId, float, float]]] = {}
        """Of turns that began lately: where, when they were sent, and how they fared."""

    def sent(self, request: RequestId, replica: ReplicaId, work_s: float, *, now: float) -> None:
        self.awaited.setdefault(replica, {})[request] = _Awaited(now, max(work_s, _SHORT_S))

    def ended(self, request: RequestId, replica: ReplicaId) -> tuple[float, float] | None:
        turns = self.awaited.get(replica, {})
        if (turn := turns.pop(request, None)) is None:
            return None
        if not turns:
            del self.awaited[replica]
        return turn.sent_s, turn.work_s + sum(
            each.work_s for each in turns.values() if each.sent_s <= turn.sent_s
        )

    def alive(self, replica: ReplicaId, *, now: float) -> None:
        for turn in self.awaited.get(replica, {}).values():
            turn.sent_s = now

    def began(self, replica: ReplicaId, pool: PoolId, sent_s: float, work_s: float, *, now: float) -> None:
        paces = self._paces.setdefault(pool, deque(maxlen=_PACES))
        paces.append((replica, sent_s, (now - sent_s) / max(work_s, _SHORT_S)))

    def wedged(self, pool: PoolId, peers: Collection[ReplicaId], *, now: float) -> Iterator[ReplicaId]:
        """Of the pool's replicas, `peers`; each once, until more is sent there."""
        paces = self._paces.get(pool, ())
        for replica, turns in [each for each in self.awaited.items() if each[0] in peers]:
            oldest_s = min(turn.sent_s for turn in turns.values())
            others = [pace for name, sent_s, pace in paces if name != replica and sent_s >= oldest_s]
            if len(turns) < self._several or len(others) < self._several:
                continue
            ahead_s, late = 0.0, 0
            for turn in turns.values():
                ahead_s += turn.work_s
                late += now - turn.sent_s >= max(_LEAST_S, _FAR * max(others) * ahead_s)
            if late >= self._several:
                del self.awaited[replica]
                yield replica

    def stalled(self, lost_s: float) -> None:
        for turns in self.awaited.values():
            for turn in turns.values():
                turn.sent_s += lost_s

    def forget(self, replica: ReplicaId) -> None:
        self.awaited.pop(replica, None)
