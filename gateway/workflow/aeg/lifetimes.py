"""How many turns conversations make, and how much each adds: by number of turns.

Source: none; the Kaplan–Meier estimate with a prior, over classes of turn numbers, with forward decay.

Invariants: memory is fixed; an observation weighs half as much after `_HALF_LIFE` later ones; a conversation
that still lives counts for the turns that it made, so short ones are not over-represented; chances lie in
[0, 1], whatever was taken back.
"""

from bisect import bisect_right
from typing import Final, NamedTuple

from gateway.domain.decay import DecayedMean

HORIZONS: Final = (0, 1, 2, 4, 8, 16, 32)
"""Turns from now at which it is asked who is there, and what they hold."""
_FIRST_TURNS: Final = (1, 2, 3, 5, 9, 17, 33, 65, 129)
"""Turn numbers at which the classes begin within which the chance is taken as constant."""
LATE_TURN: Final = _FIRST_TURNS[-1]
"""From this turn on all are expected to be alike."""
_HALF_LIFE: Final = 2000.0
_KEEP: Final = 0.5 ** (1.0 / _HALF_LIFE)
_RESCALE_AT: Final = 1e9
_PRIOR_END: Final = 0.05
_LEAST_END: Final = 1e-3
"""No conversation is expected to go on for ever."""
_STRENGTH: Final = 10.0
"""Turns that the broader class weighs."""
_PRIOR_GROWTH: Final = 0.1
"""Of its first prompt, by which a conversation grows each turn; while none is known, of so many tokens:"""
_PRIOR_PROMPT: Final = 10_000.0


class Ahead(NamedTuple):
    """Of a conversation, at each of `HORIZONS`."""

    alive: tuple[float, ...]
    """The chance that it makes so many more turns."""
    grown: tuple[float, ...]
    """By how many tokens it is longer then."""


class Remaining(NamedTuple):
    """Of one that made so many turns and holds x tokens, over all turns to come, until it ends.

    An absorbing chain: after t turns it ends with the chance h, else the next turn adds g tokens. So what is
    expected after t follows from what is after t + 1, and past `LATE_TURN` nothing changes any more:
    N = (1 - h) (1 + N'), M = (1 - h) (g + M'), G = (1 - h) (g + g N' + G').
    """

    turns: float
    """N."""
    growth: float
    """M: it holds x + M in the end."""
    token_turns: float
    """G: N x + G are the tokens that it holds, summed over its turns."""

    def before(self, ends: float, growth: float) -> "Remaining":
        on = 1.0 - ends
        return Remaining(
            on * (1.0 + self.turns),
            on * (growth + self.growth),
            on * (growth * (1.0 + self.turns) + self.token_turns),
        )


class Lifetimes:
    __slots__ = ("_ends", "_first_prompt", "_gain", "_grown", "_growth", "_seen", "turns")

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
        """The `turn`-th (from 1); `grown`: tokens since the one before it; `opening`: of one that begins."""
        if opening is not None:
            self._first_prompt.add(opening)
        gain = self._gain = self._gain / _KEEP
        place = _CLASSES[turn] if turn < LATE_TURN else -1
        self._seen[place] += gain
        self.turns += 1
        if grown is not None:
            self._growth[place].add(grown)
            self._grown.add(grown)
        if gain > _RESCALE_AT:
            self._seen = [weight / gain for weight in self._seen]
            self._ends = [weight / gain for weight in self._ends]
            self._gain = 1.0

    def saw_end(self, turn: int, by: float = 1.0) -> None:
        """The `turn`-th turn was the last one; `by` = -1 takes that back."""
        place = _class_of(turn)
        self._ends[place] = max(0.0, self._ends[place] + by * self._gain)

    def ends(self, turn: int, broader: "Lifetimes | None" = None) -> float:
        """The chance that one which made `turn` turns makes no other."""
        place = _class_of(turn)
        prior = broader.ends(turn) if broader is not None else _PRIOR_END
        seen, ends = self._seen[place] / self._gain, self._ends[place] / self._gain
        return min(1.0, (ends + prior * _STRENGTH) / (seen + _STRENGTH))

    def first_tokens(self, broader: "Lifetimes | None" = None) -> float:
        if broader is None:
            return self._first_prompt.mean(_PRIOR_PROMPT, 1e-9)
        return self._first_prompt.mean(broader.first_tokens(), 1.0)

    def growth(self, turn: int, broader: "Lifetimes | None" = None) -> float:
        """Tokens by which the `turn`-th turn is expected to make it longer."""
        if broader is not None:
            prior = broader.growth(turn)
        else:
            prior = self._grown.mean(_PRIOR_GROWTH * self.first_tokens(), _STRENGTH)
        place = _CLASSES[turn] if turn < LATE_TURN else -1
        return max(0.0, self._growth[place].mean(prior, _STRENGTH))

    def remaining(self, broader: "Lifetimes") -> list[Remaining]:
        """By turns made, from 0 to `LATE_TURN`."""
        ends = [self.ends(turn, broader) for turn in _FIRST_TURNS]
        growth = [self.growth(turn, broader) for turn in _FIRST_TURNS]
        late = max(ends[-1], _LEAST_END)
        turns = (1.0 - late) / late
        found = [Remaining(turns, turns * growth[-1], turns * growth[-1] * (1.0 + turns))]
        for at in range(LATE_TURN - 1, -1, -1):
            found.append(found[-1].before(ends[_CLASSES[at]], growth[_CLASSES[at + 1]]))
        found.reverse()
        return found

    def ahead(self, turn: int, broader: "Lifetimes") -> Ahead:
        alive, grown, at = 1.0, 0.0, turn
        chances, lengths = [], []
        for horizon in HORIZONS:
            end = turn + horizon
            while at < end:
                stop = min(end, _next_class(at), _next_class(at + 1) - 1)
                alive *= (1.0 - self.ends(at, broader)) ** (stop - at)
                grown += (stop - at) * self.growth(at + 1, broader)
                at = stop
            chances.append(alive)
            lengths.append(grown)
        return Ahead(tuple(chances), tuple(lengths))


def _class_of(turn: int) -> int:
    return max(0, bisect_right(_FIRST_TURNS, turn) - 1)


_CLASSES: Final = tuple(_class_of(turn) for turn in range(LATE_TURN + 1))


def _next_class(turn: int) -> int:
    place = _class_of(turn) + 1
    return _FIRST_TURNS[place] if place < len(_FIRST_TURNS) else 1 << 30
