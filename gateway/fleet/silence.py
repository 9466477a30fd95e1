"""Silence: which replicas answer nothing? By turns whose first token is not predicted, or not streamed.

Theory of operation. Replicas of one pool are compared. A replica's pace is the time until its first tokens,
or until the ends of unstreamed answers, over their time alone. A replica is wedged if several such turns have
no sign of life for far longer than at the slowest pace of the others, while as many later turns began or
ended elsewhere. A turn whose client has left counts on while others wait there, else for as long as it
waited: clients with a time-out hide no silence.

Invariants: memory is bounded by the awaited turns, `several` more of each replica, and `_PACES` for each
pool; a look, one in `_LOOKS_S` at most, is at `several` turns of each replica.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from gateway.domain.ids import PoolId, ReplicaId, RequestId

# Times the slowest pace of the others.
_FAR: Final = 4.0
# Before that no replica is wedged.
LEAST_S: Final = 1.0
# Least time of a turn.
_SHORT_S: Final = 0.05
_PACES: Final = 16
_LOOKS_S: Final = 0.2


class Sent(msgspec.Struct):
    sent_s: float
    work_s: float
    """Predicted, alone: its whole prompt, and an unstreamed answer."""
    ahead_s: float
    """With the turns awaited before it."""


class _Silent(msgspec.Struct):
    turns: dict[RequestId, Sent] = {}
    """In order."""
    ahead_s: float = 0.0
    left: dict[RequestId, float] = {}
    """When their clients left, since the last sign of life."""
    alive_s: float = float("-inf")
    """The last sign of life."""


class Silence:
    def __init__(self, several: int) -> None:
        """`several`: turns in a row."""
        self._several = several
        # While it is empty, beginnings and ends need not be reported.
        self.awaited: dict[ReplicaId, _Silent] = {}
        # Of recent turns: replica, time of sending, paces by own work and by all work ahead.
        self._paces: dict[PoolId, deque[tuple[ReplicaId, float, float, float]]] = {}
        self._looked_s: dict[PoolId, float] = {}

    def sent(self, request: RequestId, replica: ReplicaId, work_s: float, *, now: float) -> bool:
        """Whether the replica may be silent from now on."""
        silent = self.awaited.get(replica) or self.awaited.setdefault(replica, _Silent())
        work_s = max(work_s, _SHORT_S)
        silent.ahead_s += work_s
        silent.turns[request] = Sent(now, work_s, silent.ahead_s)
        return len(silent.turns) >= self._several

    def ended(self, request: RequestId, replica: ReplicaId) -> Sent | None:
        silent = self.awaited.get(replica)
        if silent is None or (turn := silent.turns.pop(request, None)) is None:
            return None
        silent.ahead_s -= turn.work_s if silent.left.pop(request, None) is None else 0.0
        if not silent.turns:
            del self.awaited[replica]
        return turn

    def client_left(self, request: RequestId, replica: ReplicaId, *, now: float) -> None:
        silent = self.awaited.get(replica)
        if silent is None or request not in silent.turns:
            return
        if len(silent.left) == self._several or now - silent.turns[request].sent_s < LEAST_S:
            self.ended(request, replica)
        else:
            silent.left[request] = now
            silent.ahead_s -= silent.turns[request].work_s

    def alive(self, replica: ReplicaId, *, now: float) -> None:
        if (silent := self.awaited.get(replica)) is not None:
            silent.alive_s = now
            for request in tuple(silent.left):
                self.ended(request, replica)

    def answered(
        self, request: RequestId, replica: ReplicaId, pool: PoolId, sent: Sent | None, *, now: float
    ) -> bool:
        """A turn began or ended; `sent`: if it is not awaited here. Returns whether `wedged` is due."""
        self.alive(replica, now=now)
        if (sent := self.ended(request, replica) or sent) is None:
            return False
        took_s, work_s = now - sent.sent_s, max(sent.work_s, _SHORT_S)
        paces = self._paces.setdefault(pool, deque(maxlen=_PACES))
        paces.append((replica, sent.sent_s, took_s / work_s, took_s / max(sent.ahead_s, _SHORT_S)))
        return now - self._looked_s.get(pool, float("-inf")) >= _LOOKS_S

    def wedged(self, pool: PoolId, peers: Iterable[ReplicaId], *, now: float) -> Iterator[ReplicaId]:
        """Of the pool's replicas, `peers`; each once, until its next turn."""
        paces = self._paces.get(pool, ())
        self._looked_s[pool] = now
        for replica, silent in [(each, self.awaited[each]) for each in peers if each in self.awaited]:
            oldest = list(islice(silent.turns.items(), self._several))
            since_s = max(oldest[0][1].sent_s, silent.alive_s)
            others = [each for name, sent_s, *each in paces if name != replica and sent_s >= since_s]
            if len(oldest) < self._several or len(others) < self._several:
                continue
            # An engine computes turns in order or concurrently: a late one is late by both paces.
            own, queued = map(max, zip(*others, strict=True))
            do_others_wait, are_late = len(silent.turns) > len(silent.left), True
            for request, turn in oldest:
                until_s = now if do_others_wait else silent.left.get(request, now)
                waited_s = until_s - max(turn.sent_s, silent.alive_s)
                are_late &= waited_s >= max(LEAST_S, _FAR * own * turn.work_s, _FAR * queued * turn.ahead_s)
            if are_late:
                del self.awaited[replica]
                yield replica

    def stalled(self, lost_s: float) -> None:
        for silent in self.awaited.values():
            silent.alive_s += lost_s
            silent.left = {request: left_s + lost_s for request, left_s in silent.left.items()}
            for turn in silent.turns.values():
                turn.sent_s += lost_s
