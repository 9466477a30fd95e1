"""Evidence of lost state: what turns found in the cache, and what engines say, summed up and fading.

Source: ours.

Invariants: everything is summed over the same time, `span_s`, with the same weights.
"""

import math

import msgspec


class Evidence(msgspec.Struct, kw_only=True):
    """Sums over the time lately."""

    span_s: float = 0.0
    turns: float = 0.0
    """That say what they found."""
    expected: float = 0.0
    """Tokens that they should have found."""
    lost: float = 0.0
    """Of these, what they did not."""
    timed_turns: float = 0.0
    """Those of which is known what a token takes."""
    lost_s: float = 0.0
    """What computing it takes that they did not find."""
    blind_turns: float = 0.0
    """That do not say what they found."""
    blind: float = 0.0
    """Tokens that these should have found."""
    hits: float = 0.0
    """Tokens that engines say were found."""
    preemptions: float = 0.0

    @property
    def all_turns(self) -> float:
        return self.turns + self.blind_turns

    def saw_turn(self, expected: float, lost: float | None, token_s: float | None) -> None:
        if lost is None:
            self.blind += expected
            self.blind_turns += 1
            return
        self.turns += 1
        self.expected += expected
        self.lost += lost
        if token_s is not None:
            self.timed_turns += 1
            self.lost_s += lost * token_s

    def fade(self, passed_s: float, *, lasts_s: float) -> None:
        keep = math.exp(-passed_s / lasts_s)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) * keep)
        self.span_s += passed_s

    def clear(self) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, 0.0)
