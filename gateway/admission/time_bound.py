"""The time bound: how many sessions engines can serve though every turn finds nothing in the cache.

Source: ours.

Symbols: p → `anew_s`; z + d → `pause_s` + `alone_s`; R → `replicas`.

To hold sessions back saves the time in which engines compute lost state again. It pays only where engines
have no such time. With n sessions in, each of which makes a turn every z + d seconds, and prompts that
take p seconds to compute in full, R replicas are busy with prompts for n p / (z + d) seconds a second, if
everything is lost. So up to n = R (z + d) / p they have the time, and whoever waits gains nothing by it.
Where people pause between short turns that is many more sessions than the cache holds; where agents with
long contexts run short tools it is far fewer, and the KV budget is the bound.

Deviations: —

Invariants: pauses count for as long as a session kept its place, since only sessions that are in are counted;
while little is known the bound is 0, so that the KV budget alone counts.
"""

from typing import Final

from gateway.admission.decay import DecayedMean

_ENOUGH_TURNS: Final = 4.0
"""Fewer say nothing: the first turns have no pauses."""


class TimeBound:
    def __init__(self) -> None:
        self._cycle_s = DecayedMean(half_life=100)
        self._anew_s = DecayedMean(half_life=100)

    def saw_turn(self, *, pause_s: float, alone_s: float, anew_s: float) -> None:
        """A turn took `alone_s` on an idle replica, or would have, after its session had been silent in its
        place for `pause_s`; to compute its whole prompt takes `anew_s`."""
        self._cycle_s.add(pause_s + alone_s)
        self._anew_s.add(anew_s)

    @property
    def is_known(self) -> bool:
        return self._anew_s.weight >= _ENOUGH_TURNS

    def sessions(self, replicas: int) -> float:
        """How many may be in on so many replicas, whatever is lost."""
        if not self.is_known:
            return 0.0
        return replicas * self._cycle_s.mean(0.0, 0.0) / max(self._anew_s.mean(0.0, 0.0), 1e-9)
