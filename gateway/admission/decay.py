"""Running statistics that forget: means, quantiles, and the chance that a session ends with its next turn.

Source: none; forward decay, and the Kaplan–Meier estimate with a prior.

Invariants: memory is fixed; the weight of an observation halves with every `half_life` later ones; a
session that still lives counts for the turns that it lived, so short sessions are not over-represented.
"""

import math
from bisect import bisect_right
from typing import Final

_RESCALE_AT: Final = 1e9


class DecayedMean:
    __slots__ = ("_keep", "_sum", "weight")

    def __init__(self, *, half_life: float) -> None:
        self._keep = 0.5 ** (1.0 / half_life)
        self._sum = 0.0
        self.weight = 0.0
        """How many observations it stands for; approaches 1.44 × `half_life`."""

    def add(self, value: float) -> None:
        self.weight = self.weight * self._keep + 1.0
        self._sum = self._sum * self._keep + value

    def take_back_zero(self) -> None:
        """Of a share: one of its zeros was none. It may have faded since, so its ones stay at least."""
        self.weight = max(self._sum, self.weight - 1.0)

    def mean(self, prior: float, strength: float = 1.0) -> float:
        """`strength`: how many observations the prior weighs."""
        return (self._sum + prior * strength) / (self.weight + strength)


class DecayedHistogram:
    """Quantiles of positive quantities, to within the width of a bucket (`ratio`)."""

    __slots__ = ("_counts", "_gain", "_keep", "_log_ratio", "_low", "_ratio", "_total", "observations")

    def __init__(
        self, *, low: float, ratio: float = 1.2, buckets: int = 96, half_life: float = 200.0
    ) -> None:
        self._low = low
        self._ratio = ratio
        self._log_ratio = math.log(ratio)
        self._keep = 0.5 ** (1.0 / half_life)
        self._counts = [0.0] * buckets
        self._gain = 1.0
        self._total = 0.0
        self.observations = 0

    def add(self, value: float) -> None:
        place = int(math.log(value / self._low) / self._log_ratio) + 1 if value > self._low else 0
        self._gain /= self._keep
        self._counts[min(place, len(self._counts) - 1)] += self._gain
        self._total += self._gain
        self.observations += 1
        if self._gain > _RESCALE_AT:
            self._counts = [count / self._gain for count in self._counts]
            self._total /= self._gain
            self._gain = 1.0

    def beyond(self, value: float) -> float:
        """The share of the observations that are not clearly smaller; 1 before the first."""
        if not self.observations:
            return 1.0
        place = int(math.log(value / self._low) / self._log_ratio) + 1 if value > self._low else 0
        return max(0.0, min(1.0, sum(self._counts[place:]) / self._total))

    def quantile(self, share: float) -> float | None:
        """The value that `share` of the observations do not exceed; None before the first."""
        if not self.observations:
            return None
        wanted, found = share * self._total, 0
        for place, count in enumerate(self._counts):
            if count > 0:
                found = place  # the last one, if rounding leaves something of what is wanted
                wanted -= count
                if wanted <= 0:
                    break
        return self._low * self._ratio**found


_FIRST_TURNS: Final = (1, 2, 3, 5, 9, 17, 33, 65, 129)
"""Turn numbers at which the classes begin within which the chance is taken as constant."""
LATE_TURN: Final = _FIRST_TURNS[-1]
"""From this turn on all are expected to be alike."""
_PRIOR_END: Final = 0.05
_PRIOR_TURNS: Final = 10.0


class TurnHazard:
    """The chance that a session ends with its n-th turn."""

    __slots__ = ("_ends", "_gain", "_keep", "_seen", "turns")

    def __init__(self, *, half_life: float) -> None:
        self._keep = 0.5 ** (1.0 / half_life)
        self._gain = 1.0
        self._seen = [0.0] * len(_FIRST_TURNS)
        self._ends = [0.0] * len(_FIRST_TURNS)
        self.turns = 0

    def saw(self, turn: int) -> None:
        """A session made its `turn`-th turn (from 1)."""
        self._gain /= self._keep
        self._seen[_class_of(turn)] += self._gain
        self.turns += 1
        if self._gain > _RESCALE_AT:
            self._seen = [weight / self._gain for weight in self._seen]
            self._ends = [weight / self._gain for weight in self._ends]
            self._gain = 1.0

    def saw_end(self, turn: int, *, by: float = 1.0) -> None:
        """The `turn`-th turn was a session's last; `by` = -1 takes that back."""
        place = _class_of(turn)
        self._ends[place] = max(0.0, self._ends[place] + by * self._gain)

    def chance(self, turn: int, fallback: "TurnHazard | None" = None) -> float:
        """That a session which made `turn` turns makes no other."""
        place = _class_of(turn)
        prior = fallback.chance(turn) if fallback is not None else _PRIOR_END
        seen, ends = self._seen[place] / self._gain, self._ends[place] / self._gain
        return min(1.0, (ends + prior * _PRIOR_TURNS) / (seen + _PRIOR_TURNS))

    def survival(
        self, turn: int, horizons: tuple[int, ...], fallback: "TurnHazard | None" = None
    ) -> tuple[float, ...]:
        """The chance that a session which made `turn` turns makes so many more, for each of the horizons."""
        alive, at, out = 1.0, turn, []
        for horizon in horizons:
            end = turn + horizon
            while at < end:
                place = _class_of(at)
                stop = min(end, _FIRST_TURNS[place + 1]) if place + 1 < len(_FIRST_TURNS) else end
                alive *= (1.0 - self.chance(at, fallback)) ** (stop - at)
                at = stop
            out.append(alive)
        return tuple(out)


class TurnGrowth:
    """By how much a session grows with its n-th turn; the first ones are other than the rest. Turns that
    nobody made yet are expected to be like those that were."""

    __slots__ = ("_mean", "_means", "turns")

    def __init__(self, *, half_life: float) -> None:
        self._means = [DecayedMean(half_life=half_life) for _ in _FIRST_TURNS]
        self._mean = DecayedMean(half_life=half_life)
        self.turns = 0

    def saw(self, turn: int, grown: float) -> None:
        """The `turn`-th turn left so much more than the one before it."""
        self._means[_class_of(turn)].add(grown)
        self._mean.add(grown)
        self.turns += 1

    def mean(self, turn: int, prior: float, fallback: "TurnGrowth | None" = None) -> float:
        """By how much the `turn`-th turn is expected to make a session longer."""
        prior = fallback.mean(turn, prior) if fallback is not None else self._mean.mean(prior, _PRIOR_TURNS)
        return max(0.0, self._means[_class_of(turn)].mean(prior, _PRIOR_TURNS))

    def after(
        self, turn: int, horizons: tuple[int, ...], prior: float, fallback: "TurnGrowth | None" = None
    ) -> tuple[float, ...]:
        """By how much a session that made `turn` turns will have grown after so many more."""
        grown, at, out = 0.0, turn + 1, []
        for horizon in horizons:
            end = turn + horizon + 1
            while at < end:
                place = _class_of(at)
                stop = min(end, _FIRST_TURNS[place + 1]) if place + 1 < len(_FIRST_TURNS) else end
                grown += (stop - at) * self.mean(at, prior, fallback)
                at = stop
            out.append(grown)
        return tuple(out)


def _class_of(turn: int) -> int:
    return max(0, bisect_right(_FIRST_TURNS, turn) - 1)
