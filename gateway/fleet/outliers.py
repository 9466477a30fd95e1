"""Outlier detection: is one replica slow, or are all?

Source: ours; Envoy's outlier detection compares success rates in the same way.

Theory of operation. A turn's lateness is its time over its expected p90, so unlike replicas can be compared.
Where all are late no replica is at fault. A replica with turns far later than the others', two in a row or
most of them, is an outlier for a while: placement counts it as slower (`slower`), long before an ejection.
That needs no certainty, because a move costs only a prefill. New sessions have nothing to lose there, so for
them one late turn, or several before it, is enough (it *seems* slower); thus a replica that was slow gets its
own sessions back before new ones. First tokens and ends count apart: slow decoding leaves cached prefills
fast. A live turn may be late already, but is no evidence of being in time.

Invariants: a replica without others to compare it with is never late; after `lasts_s` without a late turn it
is like the others, so none is avoided for good; a slower replica also seems slower; memory is bounded by
replicas.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.domain.ids import ReplicaId
from gateway.domain.string_enums import Word

# Least factor over the others' lateness for an ejection.
FAR_LATER: Final = 3.0
# The same for placement: with less, busy replicas lost sessions to others.
_MUCH_LATER: Final = 5.0
# The expected p90.
_LATE: Final = 1.0
# Of recent turns: two in a row are more.
_OFTEN: Final = 0.5
# One late turn and one in time are less; two late ones need two.
_RARELY: Final = 0.3
_SMOOTH: Final = 0.3
_USUAL: Final = 0.5


class Phase(Word):
    """Until the first token, and the whole turn."""

    START = "start"
    END = "end"


class _Seen(msgspec.Struct):
    """Recent turns of a replica in a phase."""

    lateness: float = _USUAL
    late_share: float = 0.0
    """Far later than the others'."""


class OutlierDetection:
    def __init__(self, *, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._seen: defaultdict[tuple[ReplicaId, Phase], _Seen] = defaultdict(_Seen)
        # The factor over the others' lateness, and its expiry.
        self.late: dict[tuple[ReplicaId, Phase], tuple[float, float]] = {}

    @property
    def next_due_s(self) -> float:
        return min((until_s for _, until_s in self.late.values()), default=float("inf"))

    def slower(self, replica: ReplicaId, *, at_least: float = _OFTEN) -> float:
        """The factor over the others' lateness; 1 unless at least that share of its turns is late."""
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
            del self.late[which]  # the next turn there is a trial

    def forget(self, replica: ReplicaId) -> None:
        for phase in Phase:
            self._seen.pop((replica, phase), None)
            self.late.pop((replica, phase), None)
