"""Lifetimes and growth of conversations, by number of turns.

Source: Kaplan and Meier (1958), with a prior, over classes of turn numbers, with forward decay. Survival has
Efron's correction (1967): 0 beyond the turns ever observed, because an end is known only after a long
silence.

Invariants: memory is fixed; an observation weighs half as much after `_HALF_LIFE` later ones; a live
conversation counts for its turns so far, so short ones are not over-represented; chances lie in [0, 1], also
after an end is taken back.
"""

from bisect import bisect_right
from typing import Final, NamedTuple

import msgspec

from gateway.domain.decay import DecayedMean

# Turns from now.
HORIZONS: Final = (0, 1, 2, 4, 8, 16, 32)
# Classes of turn numbers with a constant hazard.
_FIRST_TURNS: Final = (1, 2, 3, 5, 9, 17, 33, 65, 129)
LATE_TURN: Final = _FIRST_TURNS[-1]
_HALF_LIFE: Final = 2000.0
_KEEP: Final = 0.5 ** (1.0 / _HALF_LIFE)
_RESCALE_AT: Final = 1e9
_PRIOR_END: Final = 0.05
_LEAST_END: Final = 1e-3
# Turns of a class before survival into it counts.
_SEEN: Final = 5.0
# Turns that the broader class weighs.
_STRENGTH: Final = 10.0
# Per turn, of the first prompt.
_PRIOR_GROWTH: Final = 0.1
_PRIOR_PROMPT: Final = 10_000.0


# Survival and growth in tokens, at each of `HORIZONS`.
Ahead = tuple[tuple[float, float], ...]


class Remaining(NamedTuple):
    """Sums over the turns to come of a conversation of x tokens.

    An absorbing chain: after a turn it ends with the chance 1 - q, else the next turn adds g tokens. By
    recursion over one turn: N = q (1 + N'), M = q (g + M'), G = q (g + g N' + G'). While q and g are the same
    for m turns, with S = (1 - q^m) / (1 - q) and E = q / (1 - q): N = q^m N' + q S, M = q^m M' + g q S, G =
    q^m G' + g ((1 + E) q S + m q^m (N' - E)).
    """

    turns: float
    """N."""
    growth: float
    """M: it ends with x + M tokens."""
    token_turns: float
    """G: N x + G is the sum of its tokens over its turns."""

    def before(self, turns: int, goes_on: float, growth: float) -> "Remaining":
        q, g, later = goes_on, growth, goes_on**turns
        passed, endless = q * (1.0 - later) / (1.0 - q), q / (1.0 - q)
        return Remaining(
            later * self.turns + passed,
            later * self.growth + g * passed,
            later * self.token_turns
            + g * ((1.0 + endless) * passed + turns * later * (self.turns - endless)),
        )


class Outlook(msgspec.Struct, eq=False):
    """The expectation for one type, by number of turns."""

    ends_by_class: list[float]
    """Chances of an end."""
    growth_by_class: list[float]
    first_tokens: float
    seen_until: int
    """The first turn never observed."""
    _ahead: dict[int, Ahead] = {}
    _remaining: dict[int, Remaining] = {}

    def growth(self, turn: int) -> float:
        """Expected tokens of the `turn`-th turn."""
        return self.growth_by_class[_CLASSES[min(turn, LATE_TURN)]]

    def ahead(self, turn: int) -> Ahead:
        turn = min(turn, LATE_TURN)
        if (found := self._ahead.get(turn)) is not None:
            return found
        ends, growth = self.ends_by_class, self.growth_by_class
        alive, grown, at = 1.0, 0.0, turn
        there = []
        for horizon in HORIZONS:
            end = turn + horizon
            while at < end:
                stop = min(end, _UNTIL[at], _UNTIL[at + 1] - 1)
                alive *= (1.0 - ends[_CLASSES[at]]) ** (stop - at)
                grown += (stop - at) * growth[_CLASSES[at + 1]]
                at = stop
            there.append((alive if end < self.seen_until or not horizon else 0.0, grown))
        found = self._ahead[turn] = tuple(there)
        return found

    def remaining(self, turn: int) -> Remaining:
        turn = min(turn, LATE_TURN)
        if (found := self._remaining.get(turn)) is not None:
            return found
        place = _CLASSES[turn]
        goes_on = 1.0 - min(1.0 - _LEAST_END, max(_LEAST_END, self.ends_by_class[place]))
        growth = self.growth_by_class[place]
        if turn == LATE_TURN:
            turns = goes_on / (1.0 - goes_on)
            found = Remaining(turns, turns * growth, turns * growth * (1.0 + turns))
        else:
            following = _UNTIL[turn]  # the next class
            found = self.remaining(following).before(1, goes_on, self.growth_by_class[place + 1])
            if following - turn > 1:
                found = found.before(following - turn - 1, goes_on, growth)
        self._remaining[turn] = found
        return found


class Lifetimes:
    def __init__(self) -> None:
        classes = len(_FIRST_TURNS)
        self.turns = 0
        self._gain = 1.0
        self._seen = [0.0] * classes
        self._ends = [0.0] * classes
        self._growth = [DecayedMean(half_life=_HALF_LIFE) for _ in range(classes)]
        self._grown = DecayedMean(half_life=_HALF_LIFE)
        self._first_prompt = DecayedMean(half_life=_HALF_LIFE)

    def saw_turn(self, turn: int, grown: float | None, opening: float | None = None) -> None:
        """`turn`: from 1; `grown`: tokens since the turn before; `opening`: tokens of a first turn."""
        if opening is not None:
            self._first_prompt.add(opening)
        gain = self._gain = self._gain / _KEEP
        place = _CLASSES[turn] if turn < LATE_TURN else -1
        self._seen[place] += gain
        self.turns += 1
        if grown is not None:
            for mean in (self._growth[place], self._grown):  # `DecayedMean.add`, without the call
                mean.weight = mean.weight * _KEEP + 1.0
                mean.sum = mean.sum * _KEEP + grown
        if gain > _RESCALE_AT:
            self._seen = [weight / gain for weight in self._seen]
            self._ends = [weight / gain for weight in self._ends]
            self._gain = 1.0

    def saw_end(self, turn: int, by: float = 1.0) -> None:
        """`turn`: the last one; `by` = -1 takes that back."""
        place = _CLASSES[min(turn, LATE_TURN)]
        self._ends[place] = max(0.0, self._ends[place] + by * self._gain)

    def outlook(self, broader: Outlook | None = None) -> Outlook:
        """`broader`: for scarce evidence; None for a prior."""
        if broader is None:
            first_tokens = self._first_prompt.mean(_PRIOR_PROMPT, 1e-9)
            growth = [self._grown.mean(_PRIOR_GROWTH * first_tokens, _STRENGTH)] * len(_FIRST_TURNS)
            ends = [_PRIOR_END] * len(_FIRST_TURNS)
        else:
            first_tokens = self._first_prompt.mean(broader.first_tokens, 1.0)
            growth, ends = broader.growth_by_class, broader.ends_by_class
        ends_by_class, growth_by_class = [], []
        seen_until = broader.seen_until if broader is not None else 0
        weight = _STRENGTH * self._gain
        for place, seen in enumerate(self._seen):
            if seen >= _SEEN * self._gain:
                seen_until = max(seen_until, _UNTIL[_FIRST_TURNS[place]])
            ends_by_class.append(min(1.0, (self._ends[place] + ends[place] * weight) / (seen + weight)))
            mean = self._growth[place]  # `DecayedMean.mean`, without the call
            grown = (mean.sum + growth[place] * _STRENGTH) / (mean.weight + _STRENGTH)
            growth_by_class.append(max(0.0, grown))
        return Outlook(ends_by_class, growth_by_class, first_tokens, seen_until)


_TURNS: Final = range(LATE_TURN + HORIZONS[-1] + 2)
_CLASSES: Final = tuple(max(0, bisect_right(_FIRST_TURNS, turn) - 1) for turn in _TURNS)
# The first turn of the next class.
_UNTIL: Final = tuple((*_FIRST_TURNS, 1 << 30)[place + 1] for place in _CLASSES)
