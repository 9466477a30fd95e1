"""Lateness: are the turns of a replica late, or those of all?

Source: ours.

Symbols: —

Deviations: —

Theory of operation. How late a turn is, is what it took over what nine in ten were expected to stay
below: so unlike replicas can be compared. Where all are late it is no fault of one. A replica whose turns
are far later than those of the others, three in a row or two in three, is *late* for a while: placement
reckons with it (`slower`), long before it is ejected for it. That needs no certainty, because whoever
stays pays little for it, and whoever moves computes a prompt.

Invariants: a replica without others to compare it with is never late; after `lasts_s` without another
late turn it is like the others, so nobody is avoided for good; memory is bounded by replicas.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.domain.ids import ReplicaId

FAR_LATER: Final = 3.0
"""Times as late as others: less than that is no fault of the replica's."""
_MUCH_LATER: Final = 5.0
"""The same, to be reckoned with in placement: with less, busy replicas lost sessions to others."""
_LATE: Final = 1.0
"""A turn takes as long as nine in ten were expected to stay below."""
_OFTEN: Final = 0.65
"""Of the turns lately: three in a row are more."""
_SMOOTH: Final = 0.3
_USUAL: Final = 0.5


class _Seen(msgspec.Struct):
    """Of one replica's turns lately."""

    lateness: float = _USUAL
    late_share: float = 0.0
    """Those that were far later than the others'."""


class Lateness:
    def __init__(self, *, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._seen: dict[ReplicaId, _Seen] = {}
        self._late: dict[ReplicaId, tuple[float, float]] = {}
        """Times as late as the others, and until when that counts."""

    @property
    def is_even(self) -> bool:
        """No replica is late."""
        return not self._late

    @property
    def next_due_s(self) -> float:
        """`pass_time` changes nothing before."""
        return min((until_s for _, until_s in self._late.values()), default=float("inf"))

    def slower(self, replica: ReplicaId) -> float:
        """Times as late as the others' turns its turns are; 1 if it is not late."""
        late = self._late.get(replica)
        return late[0] if late is not None else 1.0

    def usual(self, replicas: Iterable[ReplicaId]) -> float:
        """How late turns lately were on them, in the middle; nothing if there are none."""
        found = sorted(self._of(replica).lateness for replica in replicas)
        return found[len(found) // 2] if found else 0.0

    def saw(self, replica: ReplicaId, lateness: float, others: Iterable[ReplicaId], *, now: float) -> None:
        """Of a turn there; of one that is awaited still, so far."""
        seen = self._of(replica)
        seen.lateness += _SMOOTH * (lateness - seen.lateness)
        usual = self.usual(others) if lateness >= _LATE else 0.0
        is_late = usual > 0 and lateness >= _MUCH_LATER * usual
        seen.late_share += _SMOOTH * (is_late - seen.late_share)
        if seen.late_share < _OFTEN:
            self._late.pop(replica, None)
        elif is_late:
            self._late[replica] = (lateness / usual, now + self._lasts_s)

    def pass_time(self, *, now: float) -> None:
        for replica in [name for name, (_, until_s) in self._late.items() if until_s <= now]:
            del self._late[replica]  # whoever goes there now will see

    def forget(self, replica: ReplicaId) -> None:
        self._seen.pop(replica, None)
        self._late.pop(replica, None)

    def _of(self, replica: ReplicaId) -> _Seen:
        return self._seen.get(replica) or self._seen.setdefault(replica, _Seen())
