"""Outlier detection: is one replica slow, or are all?

Source: ours; Envoy's outlier detection compares success rates in the same way.

Theory of operation. The lateness of a turn is what it took over what nine in ten were expected to stay
below: so unlike replicas can be compared. Where all are late it is no fault of one. A replica whose turns
are far later than those of the others, two in a row or most of them, is an outlier for a while: placement
reckons with it (`slower`), long before it is ejected for it. That needs no certainty, because whoever
stays pays little for it, and whoever moves computes a prompt. Whoever has nothing there to lose needs less:
it is enough that the last turn was late, or several were before it (it *seems* slower), so one that was slow
for a while gets its own sessions back before new ones. First tokens and ends are looked at apart: a replica
that decodes slowly finds what it has cached as fast as ever. What is awaited still may be late already, but
says nothing of being in time.

Invariants: a replica without others to compare it with is never late; after `lasts_s` without another
late turn it is like the others, so nobody is avoided for good; who is slower seems slower; memory is bounded
by replicas.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.domain.ids import ReplicaId
from gateway.domain.string_enums import Word

FAR_LATER: Final = 3.0
"""Times as late as others: less than that is no fault of the replica's."""
_MUCH_LATER: Final = 5.0
"""The same, to be reckoned with in placement: with less, busy replicas lost sessions to others."""
_LATE: Final = 1.0
"""A turn takes as long as nine in ten were expected to stay below."""
_OFTEN: Final = 0.5
"""Of the turns lately: two in a row are more."""
_RARELY: Final = 0.3
"""One that is followed by one in time is less; after two it takes two."""
_SMOOTH: Final = 0.3
_USUAL: Final = 0.5


class Phase(Word):
    """Of a turn: until its first token, and all of it."""

    START = "start"
    END = "end"


class _Seen(msgspec.Struct):
    """Of one replica's turns lately, in that phase."""

    lateness: float = _USUAL
    late_share: float = 0.0
    """Those that were far later than the others'."""


class OutlierDetection:
    def __init__(self, *, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._seen: defaultdict[tuple[ReplicaId, Phase], _Seen] = defaultdict(_Seen)
        self.late: dict[tuple[ReplicaId, Phase], tuple[float, float]] = {}
        """Times as late as the others, and until when that counts."""

    @property
    def next_due_s(self) -> float:
        return min((until_s for _, until_s in self.late.values()), default=float("inf"))

    def slower(self, replica: ReplicaId, *, at_least: float = _OFTEN) -> float:
        """Times as late as the others' turns its turns are; 1 unless at least that share of them is late."""
        late = [(replica, phase) for phase in Phase if (replica, phase) in self.late]
        often = [self.late[which][0] for which in late if self._seen[which].late_share >= at_least]
        return max(often, default=1.0)

    def usual(self, phase: Phase, replicas: Iterable[ReplicaId]) -> float:
        found = sorted(self._seen[replica, phase].lateness for replica in replicas)
        return found[len(found) // 2] if found else 0.0

    def saw(
        self,
        replica: ReplicaId,
        phase: Phase,
        lateness: float,
        others: Iterable[ReplicaId],
        *,
        is_over: bool,
        now: float,
    ) -> bool:
        usual = self.usual(phase, others) if lateness >= _LATE else 0.0
        is_late = usual > 0 and lateness >= _MUCH_LATER * usual
        seen = self._seen[replica, phase]
        if is_over or lateness > seen.lateness:
            seen.lateness += _SMOOTH * (lateness - seen.lateness)
        if not is_over and not is_late:
            return False
        seen.late_share += _SMOOTH * (is_late - seen.late_share)
        if is_late:
            self.late[replica, phase] = (lateness / usual, now + self._lasts_s)
        elif seen.late_share < _RARELY:
            self.late.pop((replica, phase), None)
        return is_late

    def pass_time(self, *, now: float) -> None:
        for which in [which for which, (_, until_s) in self.late.items() if until_s <= now]:
            del self.late[which]  # whoever goes there now will see

    def forget(self, replica: ReplicaId) -> None:
        for phase in Phase:
            self._seen.pop((replica, phase), None)
            self.late.pop((replica, phase), None)
